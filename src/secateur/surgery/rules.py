"""What is known about each optimizer's state, as one table: how an entry follows its parameter and what a mask does.

A row says, for the per-weight tensors of one optimizer class, what a position without history holds (`fresh`, used when
a parameter grows) and what a masked position holds (`masked`). Entries that are not in the row follow the general rule:
a tensor of the parameter's shape is cut like the parameter, a single number is kept, anything else is refused, because
a guess would silently change the training. An entry with a shape of its own needs a function (`state_rule`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur.surgery.change import Change

__all__ = ["RULES", "Entry", "EntryRule", "OptimizerRule", "rule_of", "state_rule"]

EntryRule = Callable[[str, Tensor, Change, Mapping[str, Any]], Tensor]
"""(entry name, its tensor, the parameter's change, the parameter's group) -> the entry after the change."""


@dataclass(frozen=True)
class Entry:
    """What one per-weight tensor of an optimizer's state holds where there is nothing to remember.

    Args:
        fresh: Value of a position without history: a number, the name of a group option that holds it, or None where
            the entry is a copy of the parameter and so holds the parameter's own new value.
        masked: Value at masked places, None where the entry is left as it is there. Second moments under a square root
            hold 1: the update of a masked weight is 0 either way, exact zeros make ``torch.sqrt`` on the CPU several
            times slower, and 0/0 is nan where eps is 0.
        is_shaped: The entry has a shape of its own, which may happen to be the parameter's: it always goes to the
            function of `state_rule`.
    """

    fresh: float | str | None = 0.0
    masked: float | None = 0.0
    is_shaped: bool = False


@dataclass(frozen=True)
class OptimizerRule:
    """One row of the table.

    Args:
        entries: Entries that hold something else than 0 at fresh or masked places, or have a shape of their own.
        elementwise: Whether the new value of a weight depends on that weight, its gradient and its state alone, so that
            a weight of 0 with gradient 0 and cleared state stays exactly 0.
        entry_rule: How entries with a shape of their own follow; None where there are none.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    elementwise: bool = False
    entry_rule: EntryRule | None = None

    def entry(self, name: str) -> Entry:
        """The row's word on one entry; zeros where it has none."""
        return self.entries.get(name, Entry())


_SECOND = Entry(masked=1.0)
_ADAM = OptimizerRule({"exp_avg_sq": _SECOND, "max_exp_avg_sq": _SECOND}, elementwise=True)

RULES: dict[type[Optimizer] | str, OptimizerRule] = {
    torch.optim.SGD: OptimizerRule(elementwise=True),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.NAdam: _ADAM,
    torch.optim.RAdam: _ADAM,
    torch.optim.SparseAdam: replace(_ADAM, elementwise=False),
    torch.optim.Adamax: OptimizerRule({"exp_inf": _SECOND}, elementwise=True),
    torch.optim.Adadelta: OptimizerRule({"square_avg": _SECOND}, elementwise=True),
    torch.optim.Adagrad: OptimizerRule({"sum": Entry("initial_accumulator_value", 1.0)}, elementwise=True),
    torch.optim.RMSprop: OptimizerRule({"square_avg": _SECOND}, elementwise=True),
    torch.optim.Rprop: OptimizerRule({"step_size": Entry("lr", None)}, elementwise=True),
    torch.optim.ASGD: OptimizerRule({"ax": Entry(None)}, elementwise=True),
    torch.optim.LBFGS: OptimizerRule(),
}
"""Optimizer class, or its dotted name where it must not be imported, -> its row. Subclasses inherit the entries."""


def state_rule(
    *kinds: type[Optimizer] | str, entries: Mapping[str, Entry] | None = None, elementwise: bool = False
) -> Callable[[EntryRule], EntryRule]:
    """Register how state entries with a shape of their own follow a parameter that changes its shape.

    Args:
        *kinds: Optimizer classes, or their dotted names if they should not be imported for this.
        entries: What single entries hold at fresh and masked places, where that is not 0; entries whose shape may
            happen to be the parameter's. What is said of a base class holds too.
        elementwise: See `OptimizerRule`.

    Returns:
        The decorator. The decorated function takes the entry's name, its tensor, the `Change` of the parameter and the
        parameter's group, and returns the new tensor. It is asked for every tensor with more than one element whose
        shape is not the parameter's, and should raise `UnknownStateError` for names that it does not know.

    Example:
        >>> class RowScaled(torch.optim.SGD):
        ...     '''Keeps one scale for each row of a weight.'''
        >>> @state_rule(RowScaled)
        ... def row_scale(name, value, change, group):
        ...     rows = change.along(0)
        ...     return rows.take(value, fill=1.0) if rows else value
        >>> rule_of(RowScaled([torch.nn.Parameter(torch.zeros(3, 2))])).entry_rule is row_scale
        True
    """

    def register(rule: EntryRule) -> EntryRule:
        for kind in kinds:
            base = _nearest(kind.__mro__[1:]) if isinstance(kind, type) else None
            inherited = base[1].entries if base else {}
            RULES[kind] = OptimizerRule({**inherited, **(entries or {})}, elementwise, rule)
        return rule

    return register


def rule_of(optimizer: Optimizer) -> OptimizerRule:
    """The row of the nearest class in the table; a subclass may step differently, so it is not called elementwise."""
    found = _nearest(type(optimizer).__mro__)
    if found is None:
        return OptimizerRule()
    kind, row = found
    return row if kind is type(optimizer) else replace(row, elementwise=False)


def _nearest(kinds: tuple[type, ...]) -> tuple[type, OptimizerRule] | None:
    """The first of some classes that has a row, and its row."""
    for kind in kinds:
        row = RULES.get(kind) or RULES.get(f"{kind.__module__}.{kind.__qualname__}")
        if row is not None:
            return kind, row
    return None
