"""A grow plan: where new positions come, what they hold, and which numbers in the code follow; a value."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn

from secateur._errors import ShapeError
from secateur.graph.trace import named_tensors
from secateur.shrink.numbers import NumberPlan, SetNumber, number_owner
from secateur.shrink.plan import GroupPlan
from secateur.shrink.twins import twins_among, with_free_heads_
from secateur.surgery.transaction import Holders, transaction

__all__ = ["GrowPlan"]


@dataclass(frozen=True, eq=False)
class GrowPlan:
    """What will be added to a model. Nothing is changed until it is applied; made by `plan_grow`.

    Args:
        at: For every tensor that changes, where the new positions of each dim are afterwards, ascending.
        values: What they hold, of the shapes that growing the dims in this order asks for.
        shapes: Shape before of every tensor that changes.
        numbers: Numbers in the model's objects that follow.
        groups: Units per group before and after.
        kept_whole: What does not grow, and why.
        parameters: Number of parameters before and after.
        freed: Modules of type nn.MultiheadAttention that take on a class whose heads together may be wider.
    """

    at: dict[str, dict[int, Tensor]]
    values: dict[str, dict[int, Tensor]]
    shapes: dict[str, tuple[int, ...]]
    numbers: tuple[NumberPlan, ...]
    groups: tuple[GroupPlan, ...]
    kept_whole: tuple[str, ...]
    parameters: tuple[int, int]
    freed: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """A table: totals, groups before and after, what does not grow and why."""
        lines = [f"GrowPlan: parameters {self.parameters[0]:,} -> {self.parameters[1]:,}"]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [f"  {g.name:<{width}}  {g.kind:<10} {g.before:>6,} -> {g.after:>6,}" for g in self.groups]
        lines += [f"  does not grow: {line}" for line in self.kept_whole]
        return "\n".join(lines)

    def apply_(self, model: nn.Module, *, optimizer: Holders = None, ema: Holders = None) -> nn.Module:
        """Add the units to a live model, with everything that refers to its parameters; all or nothing.

        Args:
            model: The model that the plan was made for, or a copy of it.
            optimizer: The optimizer that trains it, or several.
            ema: What follows by name: an ``AveragedModel``, copies, dicts of tensors.

        Returns:
            The model.

        Changes:
            Shapes of parameters and buffers, gradients (0 in new places), optimizer state (as for `secateur.grow_`),
            averages (which hold the new values themselves), masks (new weights are kept ones), recorded sizes.

        Keeps:
            What the model computes; its class and code; identity, names, hooks, requires_grad of all parameters.

        Raises:
            ShapeError: A tensor is missing or has another shape, or a number has another value.
            SecateurError: Those of `secateur.transaction`. Nothing has been changed then.
        """
        self._check(model)
        twins = twins_among(model, ema, self.at)
        owners = [number_owner(twin, number) for twin in twins for number in self.numbers]
        with ExitStack() as bound_again, transaction(model, optimizer, ema) as surgery:
            for twin in twins:
                for name in self.freed:
                    bound_again.callback(with_free_heads_(twin.get_submodule(name)))
            for name, dims in self.at.items():
                for dim, at in dims.items():
                    size = self.shapes[name][dim] + len(at)
                    surgery.grow(name, dim=dim, size=size, init=self.values[name][dim], at=at)
            for owner, number in zip(owners, self.numbers * len(twins), strict=True):
                surgery.also(SetNumber(owner, number))
            surgery.commit()
            bound_again.pop_all()
        return model

    def _check(self, model: nn.Module) -> None:
        """Refuse a model of another architecture."""
        tensors = named_tensors(model)
        for name, shape in self.shapes.items():
            found = tuple(tensors[name].shape) if name in tensors else "no such tensor"
            if found != shape:
                raise ShapeError(
                    f"the plan does not fit: {name!r} is not as it was when the plan was made.",
                    planned=shape,
                    found=found,
                    fix="plans apply once, to the model that they were made for or to a copy",
                )
