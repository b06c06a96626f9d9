"""The verb that repairs: optimizer, gradients, graphs and ties follow what was done to the parameters by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from secateur._errors import HolderError, InvalidInputError, UnsupportedError
from secateur.doctor.carry import Outcome
from secateur.doctor.diagnosis import examine
from secateur.doctor.findings import Findings
from secateur.doctor.repairs import Plan
from secateur.doctor.setup import Setup
from secateur.doctor.strays import strays
from secateur.doctor.wording import listed

__all__ = ["Relinked", "relink_"]


@dataclass(frozen=True)
class Relinked:
    """What `relink_` did; false if there was nothing to do.

    Args:
        relinked: Names of the parameters that the optimizer holds now in place of what they had replaced.
        state: What became of the optimizer's state, by name: ``"carried"``, ``"cut"`` to the new shape, ``"dropped"``
            (as before the first step) where nothing tells which positions were kept, ``"none"`` if there was none.
        graphs: Names of the parameters for which autograd has forgotten an old graph.
        gradients: What became of gradients of another shape, by name: ``"cut"`` or ``"dropped"``.
        retied: Pairs of names that are one tensor again.
        removed: How many orphans and duplicates the optimizer does not hold any more.
        left: Findings of the same kind that remain, for which nothing certain could be done.
    """

    relinked: tuple[str, ...] = ()
    state: dict[str, Outcome] = field(default_factory=dict)
    graphs: tuple[str, ...] = ()
    gradients: dict[str, Outcome] = field(default_factory=dict)
    retied: tuple[tuple[str, str], ...] = ()
    removed: int = 0
    left: Findings = field(default_factory=Findings)

    def __bool__(self) -> bool:
        """Whether anything was done."""
        return any((self.relinked, self.state, self.graphs, self.gradients, self.retied, self.removed))

    def __str__(self) -> str:
        """What was done, one line for each kind of thing."""
        lines = [f"now held by the optimizer: {listed(self.relinked)}"] if self.relinked else []
        for title, outcomes in (("state", self.state), ("gradient", self.gradients)):
            for outcome in dict.fromkeys(outcomes.values()):
                if outcome != "none":
                    lines.append(f"{title} {outcome}: {listed([n for n, o in outcomes.items() if o == outcome])}")
        lines += [f"old graph forgotten: {listed(self.graphs)}"] if self.graphs else []
        lines += [f"tied again: {new} / {old}" for new, old in self.retied]
        lines += [f"removed from the optimizer: {self.removed} tensor(s)"] if self.removed else []
        lines += ["left to be done by hand:", str(self.left)] if self.left else []
        return "\n".join(lines) or "nothing to do"


def relink_(model: nn.Module, optimizer: object) -> Relinked:
    """Repair what can be repaired when parameters were replaced or cut by hand.

    Args:
        model: The model.
        optimizer: The optimizer that trains it, a list of several, or None (graphs, gradients and ties only).

    Returns:
        What was done, and what is left.

    Changes:
        The optimizer holds the live parameters in place of the tensors that they replaced, in the same groups and the
        same order, with the old tensors' state, and their gradients where the new ones have none. Both are cut where
        memory or values tell which positions were kept, and dropped where nothing does. Autograd forgets graphs that
        expect an old shape. Gradients of another shape are cut or dropped. Weights that are known to have been tied are
        one object again. Duplicates, and tensors that nothing refers to any more, leave the optimizer.

    Keeps:
        The model's values, names and all parameters but those that are tied again; options of the groups; whatever is
        right already. What the new parameters' gradients have added up while nothing cleared them: call zero_grad().

    Raises:
        InvalidInputError: An argument is not what it should be, or the call is made inside ``torch.inference_mode()``.
        HolderError: The optimizer holds nothing that is or was this model's.
        UnsupportedError: The model is wrapped in DDP, which keeps the old parameters itself; or autograd would have to
            forget the shape of a tensor that cannot be changed (shared, distributed).

        Nothing has been changed when one of these is raised.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> model.weight = nn.Parameter(torch.ones(2, 3) * model.weight)
        >>> print(relink_(model, optimizer))
        now held by the optimizer: weight
        >>> optimizer.param_groups[0]["params"][0] is model.weight
        True
    """
    setup = Setup(model, optimizer)
    _refuse(setup)
    plan = Plan(setup)
    for edit in plan.edits:
        edit()
    return Relinked(
        relinked=tuple(plan.relinked),
        state=plan.state,
        graphs=tuple(plan.graphs),
        gradients=plan.gradients,
        retied=tuple(plan.retied),
        removed=plan.removed,
        left=examine(Setup(model, optimizer), only_structural=True),
    )


def _refuse(setup: Setup) -> None:
    """Refuse what cannot be repaired at all."""
    if torch.is_inference_mode_enabled():
        raise InvalidInputError(
            "cannot relink inside torch.inference_mode(), where nothing can be trained.", fix="call it outside"
        )
    if setup.once(strays).foreign:
        kinds = ", ".join(type(optimizer).__name__ for optimizer in setup.once(strays).foreign)
        raise HolderError(
            f"cannot relink: the optimizer ({kinds}) holds nothing that is or was this model's.",
            model=type(setup.model).__name__,
            trainable=len(setup.trainable),
            fix="pass the optimizer that trained this model, or make one: torch.optim.…(model.parameters())",
        )
    wrapped = any(isinstance(module, nn.parallel.DistributedDataParallel) for module in setup.given.modules())
    if wrapped and examine(setup, only_structural=True):
        raise UnsupportedError(
            "cannot relink a model inside DistributedDataParallel, which keeps the old parameters itself.",
            fix="secateur.relink_(model.module, optimizer), then wrap model.module again",
        )
