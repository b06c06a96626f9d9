"""Models and the optimizers that train them, as one subject; held weakly, so that a program can drop them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from secateur.doctor.courses import held_by
from secateur.doctor.findings import Finding
from secateur.doctor.registry import CHECKS
from secateur.doctor.setup import Setup

__all__ = ["Subject", "without_gradients"]

_PASSING = ("lr-zero", "no-gradient", "zero-gradient")
"""What one step of a healthy training may have: at the ends of a schedule, or for parts that are left out by turns."""

_NOT_HELD = ("stale-optimizer-reference", "parameter-not-in-optimizer", "tied-weights-apart", "foreign-optimizer")
"""Ways to explain a parameter that no optimizer holds; later steps may wipe out what tells them apart."""


class Subject:
    """Models that share optimizers, and those optimizers.

    Args:
        roots: The models, outermost modules; several are looked at as parts of one.
        optimizers: The optimizers that hold something of them.

    Attributes:
        is_alarmed: Whether something was put into a module, or a parameter was cut, since the last look.
        alarms: How often alarms have led to a look.
        was_well: What `Places.now` said at the last look.
        writes: How often zeros were looked for because somebody may have written to a parameter.
    """

    def __init__(self, roots: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._roots = [weakref.ref(root) for root in roots]
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._former: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._known: set[tuple[str, str]] = set()
        self._doubtful: set[tuple[str, str]] = set()
        self.is_alarmed = False
        self.alarms = self.writes = self.was_well = 0

    @property
    def roots(self) -> list[nn.Module]:
        """Those models that are alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those optimizers that are alive."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    @property
    def has_findings(self) -> bool:
        """Whether something was found."""
        return bool(self._known)

    @property
    def title(self) -> str:
        """The classes, as in ``"TSP with SGD"``."""
        models, optimizers = (", ".join(type(each).__name__ for each in some) for some in (self.roots, self.optimizers))
        return f"{models} with {optimizers}" if optimizers else models

    def setup(self) -> Setup | None:
        """What checks look at; None if the models are gone."""
        roots = self.roots
        if not roots:
            return None
        former = {key: name for key, (reference, name) in self._former.items() if reference() is not None}
        return Setup(roots[0] if len(roots) == 1 else _Several(roots), self.optimizers, former=former)

    def learn(self, setup: Setup) -> None:
        """Remember which names the parameters have now, for when they are replaced."""
        held = {key: entry for key, entry in self._former.items() if key in setup.held and entry[0]() is not None}
        self._former = held | {id(p): (weakref.ref(p), name) for name, p in setup.parameters.items()}

    def follow(self, others: Iterable[Subject]) -> None:
        """Take over what is known of subjects that this one replaces."""
        for other in others:
            if {id(root) for root in other.roots} & {id(root) for root in self.roots}:
                self._former |= other._former
                self._known |= other._known
                self._doubtful |= other._doubtful
                self.alarms, self.writes = max(self.alarms, other.alarms), max(self.writes, other.writes)
                self.was_well = max(self.was_well, other.was_well)

    def relevant(self, findings: Iterable[Finding], setup: Setup, optimizer: Optimizer | None) -> list[Finding]:
        """Those findings that matter now.

        Args:
            findings: What was found.
            setup: Where.
            optimizer: The optimizer that steps; None at the end, when learning rates may well be zero.

        Returns:
            All but what an optimizer that has done its work holds too much, and learning rates at the end.
        """
        alone = len(setup.optimizers) == 1 or any(slot.optimizer is optimizer for slot in setup.orphans)
        dropped = {"orphan-tensor": not alone, "lr-zero": optimizer is None}
        return [finding for finding in findings if not dropped.get(finding.code, False)]

    def confirmed(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those findings of a look at values that tell something by themselves, or that the look before had too."""
        passing = [finding for finding in findings if finding.code in _PASSING]
        before, self._doubtful = self._doubtful, {(each.code, name) for each in passing for name in each.names}
        doubted = [each for each in passing if not any((each.code, name) in before for name in each.names)]
        return [finding for finding in findings if finding not in doubted]

    def news(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those findings that have not been seen: each name once, and once for all where values are looked at."""
        fresh = []
        for finding in findings:
            row = CHECKS.get(finding.code)
            names = (finding.names or ("",)) if row is not None and row.structural else ("",)
            kind = "not held" if finding.code in _NOT_HELD else finding.code
            keys = {(kind, name) for name in names}
            fresh += [finding] if keys - self._known else []
            self._known |= keys
        return fresh


class _Several(nn.Module):
    """Several models as parts of one, under the names that the program gives them, for the time of a look."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        variables = {id(value): name for name, value in vars(sys.modules["__main__"]).items() if name[:1] != "_"}
        for part in parts:
            name = variables.get(id(part), type(part).__name__)
            self._modules[name if name not in self._modules else f"{name}_{len(self._modules)}"] = part
        self.training = any(part.training for part in parts)


def without_gradients(optimizer: Optimizer, steps: int) -> Finding:
    """The finding about an optimizer that has stepped several times and never met a gradient.

    Args:
        optimizer: The optimizer.
        steps: How many steps it has made.
    """
    count = len(held_by(optimizer))
    return Finding(
        "no-gradient",
        (),
        f"{type(optimizer).__name__} has made {steps} steps, and none of its {count} tensors has ever had a gradient.",
        "loss.backward() is not called, the loss is computed without a graph, zero_grad() comes between backward() and "
        "step(), or the optimizer was made for another model than the one that computes the loss.",
        "Nothing learns.",
        "optimizer = torch.optim.SGD(model.parameters(), lr=…)   # after the last change of `model`\n"
        "optimizer.zero_grad(); loss.backward(); optimizer.step()   # in this order",
        data={"steps": steps, "tensors": count},
    )
