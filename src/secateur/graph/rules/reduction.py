"""Sums, means, norms and softmaxes: what is reduced disappears, what is normalised is mixed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from secateur.graph.capture import Call, tensors_in
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []

_EXACT = ("aten.sum", "aten.linalg_vector_norm", "aten.any")
"""Reductions that zeros do not change."""


@rule(
    "aten.sum", "aten.mean", "aten.amax", "aten.amin", "aten.max", "aten.min", "aten.any", "aten.all", "aten.prod",
    "aten.argmax", "aten.argmin", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean", "aten.linalg_vector_norm",
    "aten.logsumexp", "aten.norm",
)  # fmt: skip
def reduce(call: Call) -> list[Dims]:
    """Combine all positions of some dims."""
    source = call.args[0]
    position = 2 if call.name in ("aten.linalg_vector_norm", "aten.norm") else 1
    named = call.arg(position, "dim")
    if isinstance(named, Tensor | float):
        named = None
    reduced = _chosen(named, source.dim())
    dims = call.dims(source)
    if call.name not in _EXACT:
        for d in reduced:
            call.mix(dims[d])
    if "arg" in call.name:
        for d in reduced:
            call.block(dims[d], f"{call.name} gives the number of a position")
    results = []
    for out in tensors_in(call.out):
        keep = out.dim() == source.dim()
        results.append(tuple(() if d in reduced else dim for d, dim in enumerate(dims) if keep or d not in reduced))
    return results


def _chosen(named: int | Sequence[int] | None, number: int) -> set[int]:
    """The dims that are reduced; all if none is named."""
    if named is None or (isinstance(named, Sequence) and not named):
        return set(range(number))
    listed = named if isinstance(named, Sequence) else [named]
    return {d % number for d in listed} if number else set()


@rule("aten._softmax", "aten._log_softmax", "aten._safe_softmax", "aten.cumsum", "aten.logcumsumexp")
def softmax(call: Call) -> list[Dims]:
    """Combine all positions of one dim, and keep the dim."""
    dims = call.dims(call.args[0])
    if dims:
        call.mix(dims[call.args[1] % len(dims)])
    return [dims]


@rule("aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training",
      "aten.cudnn_batch_norm", "aten._batch_norm_with_update", "aten._batch_norm_no_update")  # fmt: skip
def batch_norm(call: Call) -> list[Dims]:
    """Input (b, c, …); scale, shift and statistics (c)."""
    source = call.args[0]
    dims = call.dims(source)
    for tensor in tensors_in(call.args[1:5]):
        call.equal(dims[1], call.dims(tensor)[0])
    statistics = [(dims[1],) if out.dim() == 1 and out.numel() else call.labels.fixed_dims(out.shape)
                  for out in tensors_in(call.out)[1:]]  # fmt: skip
    return [dims, *statistics]


@rule("aten.native_layer_norm", "aten._fused_rms_norm")
def layer_norm(call: Call) -> list[Dims]:
    """Normalise over the last dims, which scale and shift share."""
    source, normalised = call.args[0], call.args[1]
    dims = call.dims(source)
    last = dims[source.dim() - len(normalised) :]
    for dim in last:
        call.mix(dim)
    for tensor in tensors_in(call.args[2:4]):
        for mine, theirs in zip(last, call.dims(tensor), strict=True):
            call.equal(mine, theirs)
    lead = dims[: source.dim() - len(normalised)]
    return [dims, *((*lead, *((),) * (out.dim() - len(lead))) for out in tensors_in(call.out)[1:])]


@rule("aten.native_group_norm")
def group_norm(call: Call) -> list[Dims]:
    """Input (b, g · c, …), scale and shift (g · c); the groups mix, and each keeps the same channels."""
    source = call.args[0]
    groups = call.args[6]
    dims = call.dims(source)
    labels = call.labels
    group, each = labels.split(labels.merge(dims[1]), groups)
    for dim in (labels.tidy((each,)), *dims[2:]):
        call.mix(dim)
    for tensor in tensors_in(call.args[1:3]):
        call.equal(dims[1], call.dims(tensor)[0])
    call.capture.groups_of(call, group)
    return [dims, *((dims[0], labels.tidy((group,))) for _ in tensors_in(call.out)[1:])]


@rule("aten._weight_norm_interface")
def weight_norm(call: Call) -> list[Dims]:
    """``v * (g / |v|)``: the norm is over all dims but one, along which g has the same positions."""
    direction, scale, dim = call.args[0], call.args[1], call.arg(2, "dim", 0)
    dims, lengths = call.dims(direction), call.dims(scale)
    call.equal(dims[dim], lengths[dim])
    for d, other in enumerate(dims):
        if d != dim:
            call.mix(other)
    return [dims, lengths]


@rule("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices", "aten.avg_pool2d", "aten.avg_pool3d",
      "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_max_pool2d", "aten.upsample_nearest1d",
      "aten.upsample_nearest2d", "aten.upsample_nearest3d", "aten.upsample_linear1d", "aten.upsample_bilinear2d",
      "aten._upsample_bilinear2d_aa", "aten.upsample_bicubic2d", "aten._upsample_bicubic2d_aa",
      "aten.upsample_trilinear3d", "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.replication_pad2d",
      "aten.avg_pool1d", "aten.max_pool1d", "aten.adaptive_avg_pool1d")  # fmt: skip
def pool(call: Call) -> list[Dims]:
    """Work on the image, channel by channel."""
    source = call.args[0]
    spatial = {"1": 1, "2": 2, "3": 3}[next(c for c in call.name if c in "123")]
    dims = call.dims(source)
    for dim in dims[source.dim() - spatial :]:
        call.block(dim, "it is a position in an image")
    lead = dims[: source.dim() - spatial]
    return [(*lead, *call.labels.fixed_dims(out.shape[len(lead) :])) for out in tensors_in(call.out)]
