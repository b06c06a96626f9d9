"""What tests of sparse products share: each level of the library, fences around memory, the exact product."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

import secateur._native as native
from secateur._native.loading import LEVELS

__all__ = ["MACHINE_LEVELS", "SIZES", "at_an_edge", "check", "exact", "fenced", "fences", "on", "random_weight"]

_FENCE = 64
_UNIT = 2.0**-24
_LIBRARY = native.library()

MACHINE_LEVELS = () if _LIBRARY is None else LEVELS[: LEVELS.index(_LIBRARY.level) + 1]
"""Instruction sets that can be tested here; none without the library, and then the tests fail."""

SIZES = st.sampled_from([1, 2, 3, 15, 16, 17, 31, 47, 63, 64, 65, 97, 128, 131, 160, 257])
"""Numbers of outputs and inputs on both sides of what kernels take at once."""


@contextmanager
def on(level: str) -> Iterator[None]:
    """The library's functions are those of a level."""
    assert _LIBRARY is not None
    with patch.object(native, "library", return_value=replace(_LIBRARY, level=level)):
        yield


@contextmanager
def fences() -> Iterator[None]:
    """Every tensor of ``torch.empty`` lies between bytes that must stay as they are."""
    whole: list[tuple[Tensor, int]] = []
    plain: Callable[..., Tensor] = torch.empty

    def fenced_empty(*shape: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        size = torch.Size(shape[0] if isinstance(shape[0], tuple) else shape)
        used = size.numel() * dtype.itemsize
        memory = torch.full((used + 2 * _FENCE,), 0xA5, dtype=torch.uint8)
        whole.append((memory, used))
        return memory[_FENCE : _FENCE + used].view(dtype).view(size)

    with patch.object(torch, "empty", fenced_empty):
        assert torch.empty is not plain
        yield
    for memory, used in whole:
        assert (memory[:_FENCE] == 0xA5).all()
        assert (memory[_FENCE + used :] == 0xA5).all()


def fenced(x: Tensor) -> Tensor:
    """A contiguous copy between nan, that does not begin at a line of the cache."""
    memory = torch.full((x.numel() + 2 * _FENCE + 1,), float("nan"))
    copy = memory[_FENCE + 1 :][: x.numel()].view(x.shape)
    copy.copy_(x)
    return copy


def at_an_edge(x: Tensor) -> Tensor:
    """A contiguous copy right before memory that must not be read: whoever does crashes, at every instruction."""
    if x.numel() == 0:
        return x.clone()
    page, size = mmap.PAGESIZE, x.numel() * x.itemsize
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages * page), ctypes.c_size_t(page), 0) == 0
    copy = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=pages * page - size).view(x.shape)
    return copy.copy_(x)


def random_weight(outputs: int, inputs: int, density: float) -> Tensor:
    """Entries of all sizes, some rows without any."""
    kept = (torch.rand(outputs, inputs) < density) & (torch.rand(outputs, 1) < 0.9)
    return torch.where(kept, torch.randn(outputs, inputs) * 10 ** torch.randn(outputs, inputs), 0.0)


def exact(x: Tensor, weight: Tensor, stored: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """The product in double precision, over the entries that are stored."""
    terms = torch.where(stored, x.double()[:, None] * weight.double(), 0.0)
    y = terms.sum(2) if bias is None else terms.sum(2) + bias.double()
    return y.relu() if relu else y


def check(y: Tensor, x: Tensor, weight: Tensor, stored: Tensor, bias: Tensor | None, relu: bool) -> None:
    """Assert that a product is the exact one but for its roundings.

    A term is rounded once, in at most as many additions as there are terms, in at most four that join partial sums, and
    in that of the bias; so the error is at most gamma(n) of the sum of absolute values, with n = terms + 6 (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1). ReLU moves no two numbers apart.
    """
    wanted = exact(x, weight, stored, bias, relu)
    roundings = (stored.sum(1) + 6) * _UNIT
    size = (x.double().abs() @ (weight.double().abs() * stored).t()) + (0 if bias is None else bias.double().abs())
    assert y.shape == wanted.shape
    assert y.dtype == torch.float32
    assert y.is_contiguous()
    assert ((y - wanted).abs() <= size * roundings / (1 - roundings) + 1e-44).all()
