"""Losses, which a model may compute itself."""

from __future__ import annotations

import torch

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule
from secateur.graph.rules.pointwise import broadcast_all

__all__: list[str] = []


@rule(
    "aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss", "aten.binary_cross_entropy",
    "aten.binary_cross_entropy_with_logits", "aten.soft_margin_loss", "aten.dist",
)  # fmt: skip
def pointwise_loss(call: Call) -> list[Dims]:
    """Compare two tensors position by position, then keep, average (1) or add (2) the results."""
    dims = broadcast_all(call, call.inputs, torch.broadcast_shapes(*(tensor.shape for tensor in call.inputs)))
    if call.arg("reduction") == 0:
        return [dims]
    for dim in dims:
        call.mix(dim)
    return [()]


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def negative_log_likelihood(call: Call) -> list[Dims]:
    """Log-probabilities ((batch), class, …), targets ((batch), …), class weights (class)."""
    dims, targets = call.dims(call.args[0]), call.dims(call.args[1])
    at = 0 if len(dims) == 1 else 1
    for tensor in call.inputs[2:]:
        call.equal(dims[at], call.dims(tensor)[0])
    call.block(dims[at], "targets give numbers of its positions")
    others = (*dims[:at], *dims[at + 1 :])
    for mine, theirs in zip(others, targets, strict=True):
        call.equal(mine, theirs)
    if call.arg("reduction") == 0:
        return [others, ()]
    for dim in others:
        call.mix(dim)
    return [(), ()]
