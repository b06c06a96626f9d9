"""Products in one call: those of one after another, at every level, for every mix of kernels."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import secateur._native as native
from secateur import UnsupportedError
from secateur._native.products import Product, chained
from secateur.runtime.formats import LINEAR_FORMATS
from tests.native.products import MACHINE_LEVELS, SIZES, fenced, fences, on, random_weight

LEVEL = pytest.mark.parametrize("level", MACHINE_LEVELS)
NATIVE = [name for name, each in LINEAR_FORMATS.items() if each.library == "kernels"]


def product_of(name: str, weight: Tensor, *, relu: bool = False) -> Product:
    """A weight in a format of the library."""
    each = LINEAR_FORMATS[name]
    made = each.bind(each.pack(weight, torch.float32), weight.shape, torch.linspace(-1, 1, len(weight)), relu)
    assert isinstance(made, Product)
    return made


@LEVEL
@settings(max_examples=60)
@given(
    widths=st.lists(SIZES, min_size=2, max_size=6),
    names=st.lists(st.sampled_from(NATIVE), min_size=5, max_size=5),
    batch=st.sampled_from([0, 1, 2, 5, 17, 70]),
    seed=st.integers(0, 99),
)
def test_chain_is_one_product_after_another_and_writes_nothing_else(level, widths, names, batch, seed):
    torch.manual_seed(seed)
    x = fenced(torch.randn(batch, widths[0]))
    with on(level):
        layers = [
            product_of(name, random_weight(outputs, inputs, 0.3) / 10, relu=bool(seed % 2))
            for name, inputs, outputs in zip(names, widths, widths[1:], strict=False)
        ]
        wanted = x
        for layer in layers:
            wanted = layer(wanted)
        with fences():
            y = chained(layers)(x)
            twice = chained([chained(layers)])(x)
    assert torch.equal(y, wanted)
    assert torch.equal(twice, wanted)


def test_chain_keeps_what_it_points_to_and_lets_it_go():
    weight = torch.eye(64)
    layers = [product_of("lanes", weight) for _ in range(3)]
    kept = [weakref.ref(part) for layer in layers for part in layer.held]
    chain = chained(layers)
    x = torch.rand(1, 64)
    expected = chain(x)
    del layers
    gc.collect()
    assert all(part() is not None for part in kept)
    assert torch.equal(chain(x), expected)
    del chain
    assert not any(part() is not None for part in kept)


def test_chain_without_memory_is_an_error_of_python():
    chain, tall = chained([product_of("lanes", torch.eye(64))] * 2), SimpleNamespace(shape=(1 << 50, 64), data_ptr=int)
    with patch.object(torch, "empty", lambda *_, **__: torch.zeros(1)), pytest.raises(MemoryError, match="multiply"):
        chain(tall)


def test_without_the_library_the_reason_is_told():
    layer = product_of("lanes", torch.eye(8))
    with patch.object(native, "library", return_value=None), pytest.raises(UnsupportedError, match="native format"):
        chained([layer])
