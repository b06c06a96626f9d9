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

from secateur._errors import UnknownStateError
from secateur.surgery.change import Change

__all__ = ["RULES", "Entry", "EntryRule", "OptimizerRule", "follow_entry", "rule_of", "state_rule"]

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
    """

    fresh: float | str | None = 0.0
    masked: float | None = 0.0


@dataclass(frozen=True)
class OptimizerRule:
    """One row of the table.

    Args:
        entries: Entries that hold something else than 0 at fresh or masked places.
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
"""Optimizer class, or its dotted name where it must not be imported -> its row. Subclasses inherit the row's entries."""


def state_rule(
    *kinds: type[Optimizer] | str, entries: Mapping[str, Entry] | None = None, elementwise: bool = False
) -> Callable[[EntryRule], EntryRule]:
    """Register how state entries with a shape of their own follow a parameter that changes its shape.

    Args:
        *kinds: Optimizer classes, or their dotted names if they should not be imported for this.
        entries: What entries of the parameter's shape hold at fresh and masked places, where that is not 0.
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
            RULES[kind] = OptimizerRule(dict(entries or {}), elementwise, rule)
        return rule

    return register


def rule_of(optimizer: Optimizer) -> OptimizerRule:
    """The row of the nearest class in the table; a subclass may step differently, so it is not called elementwise."""
    for kind in type(optimizer).__mro__:
        row = RULES.get(kind) or RULES.get(f"{kind.__module__}.{kind.__qualname__}")
        if row is not None:
            return row if kind is type(optimizer) else replace(row, elementwise=False)
    return OptimizerRule()


def follow_entry(optimizer: Optimizer, name: str, value: object, change: Change, group: Mapping[str, Any]) -> object:
    """One entry of a parameter's state after the parameter's change.

    Args:
        optimizer: The optimizer that holds the parameter.
        name: The entry's name in ``optimizer.state[parameter]``.
        value: What it holds.
        change: The parameter's change.
        group: The parameter's group.

    Returns:
        The new value; `value` itself where nothing changes.

    Raises:
        UnknownStateError: The entry has a shape or type of unknown meaning.
    """
    row = rule_of(optimizer)
    if isinstance(value, Tensor) and value.shape == change.old_shape:
        fresh = row.entry(name).fresh
        if fresh is None:
            return change.take_value(value)
        return change.take(value, float(group[fresh]) if isinstance(fresh, str) else fresh)
    if _is_single(value):
        return value
    if isinstance(value, Tensor) and row.entry_rule is not None:
        return row.entry_rule(name, value, change, group)
    raise unknown_entry(optimizer, name, value, change)


def unknown_entry(optimizer: Optimizer, name: str, value: object, change: Change) -> UnknownStateError:
    """The error for an entry that no rule covers."""
    kind = type(optimizer).__name__
    return UnknownStateError(
        f"{kind} keeps {name!r} for {change.name!r}, and it is not known how that follows the parameter.",
        entry=tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__,
        parameter=f"{tuple(change.old_shape)} -> {tuple(change.new_shape)}",
        fix=f"register a rule: @secateur.surgery.state_rule({kind})",
    )


def _is_single(value: object) -> bool:
    """Whether the entry is one number, flag or nothing, which does not depend on the parameter's shape."""
    if isinstance(value, Tensor):
        return value.numel() <= 1
    return value is None or isinstance(value, int | float | str)


@state_rule(torch.optim.Adafactor)
def _adafactor(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
    """Row means (…, R, 1) and column means (…, 1, C): the mean is over fewer positions, so the other factor is rescaled."""
    if name not in ("row_var", "col_var"):
        raise UnknownStateError(f"Adafactor keeps {name!r} for {change.name!r}, which is not known.")
    mean_dim = -1 if name == "row_var" else -2
    return _take_mean(value, change, mean_dim % change.tensor.dim(), keepdim=True)


@state_rule("transformers.optimization.Adafactor")
def _transformers_adafactor(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
    """The same with the mean's dim squeezed: exp_avg_sq_row (…, R), exp_avg_sq_col (…, C); told apart by name."""
    if name not in ("exp_avg_sq_row", "exp_avg_sq_col"):
        raise UnknownStateError(f"Adafactor keeps {name!r} for {change.name!r}, which is not known.")
    mean_dim = -1 if name == "exp_avg_sq_row" else -2
    return _take_mean(value, change, mean_dim % change.tensor.dim(), keepdim=False)


def _take_mean(value: Tensor, change: Change, mean_dim: int, *, keepdim: bool) -> Tensor:
    """Make a mean over `mean_dim` follow: cut the other dims; a mean over dead or new positions is diluted by them."""
    for selection in change.selections:
        if selection.dim != mean_dim:
            dim = selection.dim if keepdim or selection.dim < mean_dim else selection.dim - 1
            value = selection.on(dim).take(value)
    return value / change.growth(mean_dim)
