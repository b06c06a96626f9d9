"""Sums, means, maxima, softmaxes, scans: what is reduced disappears, what depends on all positions is mixed."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []

_NEUTRAL = {"aten.sum", "aten.nansum", "aten.count_nonzero", "aten.cumsum", "aten.cumsum_"}
"""Ops that zeros do not change."""


@rule(
    "aten.sum", "aten.nansum", "aten.mean", "aten.amax", "aten.amin", "aten.aminmax", "aten.any", "aten.all",
    "aten.prod", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean", "aten.linalg_vector_norm", "aten.norm",
    "aten.logsumexp", "aten.count_nonzero",
)  # fmt: skip
def reduce(call: Call) -> list[Dims]:
    """Combine all positions of some dims."""
    dims = call.dims(call.args[0])
    reduced = _chosen(call.arg("dim"), len(dims))
    if not _is_neutral(call):
        for d in reduced:
            call.mix(dims[d])
    return _without(call, dims, reduced)


@rule(
    "aten.max", "aten.min", "aten.argmax", "aten.argmin", "aten.median", "aten.nanmedian", "aten.mode",
    "aten.kthvalue",
)  # fmt: skip
def reduce_to_one(call: Call) -> list[Dims]:
    """Take one position of a dim by its value; its number, if that is used, must not shift."""
    dims = call.dims(call.args[0])
    reduced = _chosen(call.arg("dim"), len(dims))
    number = len(call.outputs) - 1 if "arg" in call.name or len(call.outputs) > 1 else None
    for d in reduced:
        call.mix(dims[d])
        if number is not None:
            call.block_if_used(dims[d], f"{call.name} gives the number of a position", number)
        if call.name == "aten.kthvalue":
            call.block(dims[d], f"{call.name} counts its positions")
    return _without(call, dims, reduced)


def _is_neutral(call: Call) -> bool:
    """Whether positions that hold zero do not change the result."""
    if "norm" in call.name:
        order = call.arg("ord", call.arg("p"))
        return order is None or order > 0
    return call.name in _NEUTRAL


def _chosen(named: int | Sequence[int] | None, number: int) -> set[int]:
    """The dims that are reduced; all if none is named."""
    if named is None or (isinstance(named, Sequence) and not named):
        return set(range(number))
    listed = named if isinstance(named, Sequence) else [named]
    return {d % number for d in listed} if number else set()


def _without(call: Call, dims: Dims, reduced: set[int]) -> list[Dims]:
    """Dims of results, without the reduced ones or with size 1 in their places."""
    results = []
    for out in call.outputs:
        keep = out.dim() == len(dims)
        results.append(tuple(() if d in reduced else dim for d, dim in enumerate(dims) if keep or d not in reduced))
    return results


@rule(
    "aten._softmax", "aten._log_softmax", "aten._safe_softmax", "aten.cumsum", "aten.cumsum_", "aten.cumprod",
    "aten.cumprod_", "aten.logcumsumexp", "aten.cummax", "aten.cummin",
)  # fmt: skip
def along(call: Call) -> list[Dims]:
    """Combine positions of one dim with others, and keep the dim."""
    dims = call.dims(call.args[0])
    if dims:
        dim = dims[call.arg("dim")]
        if not _is_neutral(call):
            call.mix(dim)
        if len(call.outputs) > 1:
            call.block_if_used(dim, f"{call.name} gives the number of a position", 1)
    return [dims] * len(call.outputs)


@rule("aten.trace")
def trace(call: Call) -> list[Dims]:
    """The sum of the positions (i, i)."""
    one, other = call.dims(call.args[0])
    if call.args[0].shape[0] == call.args[0].shape[1]:
        call.equal(one, other)
    else:
        for dim in (one, other):
            call.block(dim, f"{call.name} compares the numbers of its positions")
    return [()]


@rule("aten.renorm", "aten.renorm_")
def renorm(call: Call) -> list[Dims]:
    """Scale each position of one dim by the norm over all others."""
    dims = call.dims(call.args[0])
    for d, dim in enumerate(dims):
        if d != call.arg("dim") % len(dims):
            call.mix(dim)
    return [dims]


@rule("aten.linalg_cross")
def cross(call: Call) -> list[Dims]:
    """Vectors of three along one dim."""
    one, other = (call.dims(tensor) for tensor in call.args[:2])
    d = call.arg("dim") % len(one)
    call.block(one[d], f"{call.name} combines its three positions")
    for mine, theirs in zip(one, other, strict=True):
        call.equal(mine or theirs, theirs or mine)
    return [tuple(mine or theirs for mine, theirs in zip(one, other, strict=True))]
