"""Batch, layer, group and weight norm: what is normalised over is mixed, scale and shift share its positions."""

from __future__ import annotations

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule(
    "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training",
    "aten.cudnn_batch_norm", "aten._batch_norm_with_update", "aten._batch_norm_no_update",
)  # fmt: skip
def batch_norm(call: Call) -> list[Dims]:
    """Input (b, c, …); scale, shift and statistics (c). In training form all but the channels is mixed."""
    dims = call.dims(call.args[0])
    for tensor in call.inputs[1:]:
        call.equal(dims[1], call.dims(tensor)[0])
    if call.arg("training", call.name == "aten._batch_norm_with_update"):
        for dim in (dims[0], *dims[2:]):
            call.mix(dim)
    channels = call.args[0].shape[1]
    statistics = [(dims[1],) if out.shape == (channels,) else call.labels.fixed_dims(out.shape)
                  for out in call.outputs[1:]]  # fmt: skip
    return [dims, *statistics]


@rule("aten.native_layer_norm", "aten._fused_rms_norm")
def layer_norm(call: Call) -> list[Dims]:
    """Normalise over the last dims, which scale and shift share."""
    dims = call.dims(call.args[0])
    split = len(dims) - len(call.arg("normalized_shape"))
    lead, last = dims[:split], dims[split:]
    for dim in last:
        call.mix(dim)
    for tensor in call.inputs[1:]:
        for mine, theirs in zip(last, call.dims(tensor), strict=True):
            call.equal(mine, theirs)
    statistics = (*lead, *((),) * len(last))
    return [dims, *(statistics[: out.dim()] for out in call.outputs[1:])]


@rule("aten.native_group_norm")
def group_norm(call: Call) -> list[Dims]:
    """Input (b, g · c, …), scale and shift (g · c); the groups mix, and each keeps the same channels."""
    dims, labels = call.dims(call.args[0]), call.labels
    group, each = labels.split(labels.merge(dims[1]), call.arg("group"))
    for dim in (labels.tidy((each,)), *dims[2:]):
        call.mix(dim)
    for tensor in call.inputs[1:]:
        call.equal(dims[1], call.dims(tensor)[0])
    call.capture.groups_of(group)
    return [dims, *[(dims[0], labels.tidy((group,)))] * (len(call.outputs) - 1)]


@rule("aten._weight_norm_interface")
def weight_norm(call: Call) -> list[Dims]:
    """``v * (g / |v|)``: the norm is over all dims but one, along which g has the same positions.

    Positions of the others go without a trace: surgery changes g by what the norm loses.
    """
    dims, lengths = (call.dims(tensor) for tensor in call.args[:2])
    kept = call.arg("dim") % len(dims)
    call.equal(dims[kept], lengths[kept] if len(lengths) == len(dims) else lengths[0])
    return [dims, lengths]


@rule("aten.embedding_renorm_")
def embedding_renorm(call: Call) -> list[Dims]:
    """Rows that are looked up by number are scaled by their norms."""
    rows, width = call.dims(call.args[0])
    for dim in (rows, *call.dims(call.args[1])):
        call.block(dim, "its rows are looked up by number")
    call.mix(width)
    return [(rows, width)]
