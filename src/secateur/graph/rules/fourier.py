"""Fourier transforms: every position of a transformed dim depends on all others and on their number."""

from __future__ import annotations

from secateur.graph.call import Call
from secateur.graph.labels import Dims
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r")
def transform(call: Call) -> list[Dims]:
    """Transform some dims; the others pass on."""
    dims = list(call.dims(call.args[0]))
    for d in call.arg("dim"):
        call.block(dims[d], f"{call.name} transforms it as a whole")
        dims[d] = call.labels.fixed_dim(call.out.shape[d])
    return [tuple(dims)]
