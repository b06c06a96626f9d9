"""Weights of every pattern, and formats that keep a weight dense: with them all layers can be packed on any machine."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, ConvFormat, Geometry, LinearFormat, Parts
from secateur.runtime.formats._format import Bound


def _pack(weight: Tensor, dtype: torch.dtype) -> Parts:
    return (weight.to(dtype),)


def _unpack(parts: Parts, shape: torch.Size) -> Tensor:
    return parts[0].float().view(shape).clone()


def _bind(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool) -> Bound:
    def product(x: Tensor) -> Tensor:
        y = functional.linear(x, parts[0].float(), bias)
        return y.relu() if relu else y

    return product


def _bind_conv(parts: Parts, shape: torch.Size, bias: Tensor | None, relu: bool, geometry: Geometry) -> Bound:
    def product(x: Tensor) -> Tensor:
        y = functional.conv2d(x, parts[0].float(), bias, *geometry)
        return y.relu() if relu else y

    return product


KEPT_DENSE = LinearFormat("kept dense", "torch", lambda weight: "", _pack, _unpack, _bind)
KEPT_DENSE_CONV = ConvFormat("kept dense", "torch", lambda weight, geometry: "", _pack, _unpack, _bind_conv)


def _is_here(each: LinearFormat | ConvFormat) -> bool:
    return not each.absence()


LINEAR = {name: each for name, each in (LINEAR_FORMATS | {"kept dense": KEPT_DENSE}).items() if _is_here(each)}
CONV = {name: each for name, each in (CONV_FORMATS | {"kept dense": KEPT_DENSE_CONV}).items() if _is_here(each)}
"""The formats of this machine by name, and the one that keeps a weight dense."""


def masked(shape: tuple[int, ...], sparsity: float, height: int = 1, seed: int = 0) -> Tensor:
    """A weight whose columns are kept, or are zero, for so many consecutive outputs together."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-shape[0] // height)
    kept = torch.rand((blocks, *shape[1:]), generator=generator) >= sparsity
    return torch.randn(shape, generator=generator) * kept.repeat_interleave(height, dim=0)[: shape[0]]


def linear_weights() -> st.SearchStrategy[Tensor]:
    """Weights of linear layers, of every size and pattern that some format is for."""
    shapes = st.tuples(st.integers(1, 150), st.integers(1, 300))
    return st.builds(
        masked, shapes, st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from([1, 16, 32, 64]), st.integers(0, 99)
    )


def conv_weights() -> st.SearchStrategy[Tensor]:
    """Weights of convolutions."""
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4))
    return st.builds(masked, sizes, st.sampled_from([0.3, 0.5, 0.9, 1.0]), st.just(1), st.integers(0, 99))


def geometries() -> st.SearchStrategy[Geometry]:
    """Ways in which a convolution moves."""
    pairs = [st.tuples(*[st.integers(*limits)] * 2) for limits in ((1, 3), (0, 3), (1, 3))]
    return st.builds(Geometry, *pairs)
