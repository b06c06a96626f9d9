"""How one entry of an optimizer's state follows its parameter: the general rule, and those of the factored optimizers.

References:
    Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018, section 3: the second moment
    of an R x C weight is kept as its row means and column means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur import _compat
from secateur._errors import UnknownStateError
from secateur.surgery.change import Change
from secateur.surgery.rules import Entry, OptimizerRule, rule_of, state_rule

__all__ = ["follow_entry", "unknown_entry"]


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
    if isinstance(value, Tensor) and not row.entry(name).is_shaped and not _compat.has_inner_tensors(value):
        if value.shape == change.old_shape:
            return _cut(row.entry(name), value, change, group)
        if value.numel() <= 1:
            return value
    elif not isinstance(value, Tensor) and _is_single(value):
        return value
    return _by_rule(row, optimizer, name, value, change, group)


def _cut(entry: Entry, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
    """An entry of the parameter's shape, cut like it; new positions as the row says."""
    if entry.fresh is None:
        return change.take_value(value)
    if not isinstance(entry.fresh, str):
        return change.take(value, entry.fresh)
    fill = float(group[entry.fresh])
    return change.take(value, complex(fill, fill) if value.is_complex() else fill)


def _is_single(value: object) -> bool:
    """Whether the entry is one number, flag, word or nothing, which does not depend on the parameter's shape."""
    return value is None or isinstance(value, int | float | complex | str)


def _by_rule(
    row: OptimizerRule, optimizer: Optimizer, name: str, value: object, change: Change, group: Mapping[str, Any]
) -> Tensor:
    """An entry with a shape of its own."""
    if not isinstance(value, Tensor) or row.entry_rule is None:
        raise unknown_entry(optimizer, name, value, change)
    return row.entry_rule(name, value, change, group)


def unknown_entry(optimizer: Optimizer, name: str, value: object, change: Change) -> UnknownStateError:
    """The error for an entry that no rule covers."""
    kind = type(optimizer).__name__
    fix = f"register a rule: @secateur.surgery.state_rule({kind})"
    if type(optimizer).__module__.startswith("torch.optim"):
        fix = "secateur.relink_(model, optimizer), if the parameter's shape was changed by hand before"
    return UnknownStateError(
        f"{kind} keeps {name!r} for {change.name!r}, and it is not known how that follows the parameter.",
        entry=tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__,
        parameter=f"{tuple(change.old_shape)} -> {tuple(change.new_shape)}",
        fix=fix,
    )


_SHAPED = Entry(is_shaped=True)


@state_rule(torch.optim.Adafactor, entries={"row_var": _SHAPED, "col_var": _SHAPED})
def _adafactor(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
    """Row means (…, R, 1) and column means (…, 1, C)."""
    return _take_mean(value, change, _mean_dim(name, ("row_var", "col_var"), value, change, kept=[1]))


@state_rule("transformers.optimization.Adafactor", entries={"exp_avg_sq_row": _SHAPED, "exp_avg_sq_col": _SHAPED})
def _transformers_adafactor(name: str, value: Tensor, change: Change, group: Mapping[str, Any]) -> Tensor:
    """The same without the dim of the mean, exp_avg_sq_row (…, R) and exp_avg_sq_col (…, C): told apart by name."""
    mean_dim = _mean_dim(name, ("exp_avg_sq_row", "exp_avg_sq_col"), value, change, kept=[])
    return _take_mean(value.unsqueeze(mean_dim), change, mean_dim).squeeze(mean_dim)


def _mean_dim(name: str, names: tuple[str, str], value: Tensor, change: Change, kept: list[int]) -> int:
    """The dim that a factor is the mean over, columns for row means; `kept` is what the mean has left of it."""
    shape, mean_dim = list(change.old_shape), change.tensor.dim() - 1
    if name in names:
        mean_dim -= names.index(name)
        shape[mean_dim : mean_dim + 1] = kept
    if name not in names or list(value.shape) != shape:
        raise UnknownStateError(
            f"Adafactor keeps {name!r} for {change.name!r}, and it is not known how that follows the parameter.",
            entry=tuple(value.shape),
            parameter=f"{tuple(change.old_shape)} -> {tuple(change.new_shape)}",
        )
    return mean_dim


def _take_mean(value: Tensor, change: Change, mean_dim: int) -> Tensor:
    """A factor that is a mean over `mean_dim`: cut along the others; removed or new positions count as zeros in it.

    With R of the rows left of R₀, the column means are divided by R / R₀. The estimate row · column / mean(row) is then
    what it was, as long as the removed rows were zero.
    """
    for selection in change.selections:
        if selection.dim != mean_dim:
            value = selection.take(value)
    return value / change.growth(mean_dim)
