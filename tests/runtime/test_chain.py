"""Layers in one call are the layers one by one, and whoever wants to see one of them does."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur import InvalidInputError, ShapeError, UnsupportedError
from secateur._native.products import Product
from secateur.runtime.chain import Chain
from secateur.runtime.formats import LINEAR_FORMATS
from secateur.runtime.layers import SparseLinear

FLOAT32_FORMATS = sorted(LINEAR_FORMATS)
HERE = [name for name in FLOAT32_FORMATS if not LINEAR_FORMATS[name].absence()]
"""Those that this machine can compute."""


def sparse(outputs: int, inputs: int, name: str = "lanes", dtype: torch.dtype = torch.float32) -> SparseLinear:
    """A layer with a third of its weights, in wide blocks so that every format takes it."""
    kept = torch.rand(1, inputs).expand(outputs, -1) < 1 / 3
    weight = torch.randn(outputs, inputs) * kept
    parts = LINEAR_FORMATS[name].pack(weight, torch.float32)
    return SparseLinear(name, parts, weight.shape, torch.randn(outputs), relu=True, dtype=dtype)


def chain(*modules: nn.Module) -> Chain:
    return Chain(*modules).eval()


@contextmanager
def counted_products() -> Iterator[list[str]]:
    """The calls of products, chains or single ones, that are made meanwhile."""
    calls: list[str] = []
    plain = Product.__call__

    def counted(self: Product, x: Tensor) -> Tensor:
        calls.append(self.function.__name__)
        return plain(self, x)

    with patch.object(Product, "__call__", counted):
        yield calls


def one_by_one(model: Iterable[nn.Module], x: Any) -> Any:
    for part in model:
        x = part(x)
    return x


@given(
    names=st.lists(st.sampled_from([*FLOAT32_FORMATS, "relu", "identity", "dense", "bfloat16"]), max_size=7),
    shape=st.sampled_from([(64,), (1, 64), (5, 64), (2, 3, 64), (0, 64)]),
    seed=st.integers(0, 9),
)
def test_chain_is_its_parts_one_by_one(names: list[str], shape: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    others = {"relu": nn.ReLU, "identity": nn.Identity, "dense": lambda: nn.Linear(64, 64)}
    parts = [others[name]() if name in others else None for name in names]
    if "bfloat16" in names:
        parts = [nn.Identity() if name == "dense" else part for name, part in zip(names, parts, strict=True)]
    dtype = torch.bfloat16 if "bfloat16" in names else torch.float32
    filled = [
        part or sparse(64, 64, name if name in LINEAR_FORMATS else "lanes", dtype)
        for name, part in zip(names, parts, strict=True)
    ]
    model, x = chain(*filled), torch.randn(shape, dtype=dtype)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(x), one_by_one(model, x))


def test_layers_that_follow_each_other_are_one_call() -> None:
    model = chain(sparse(32, 64), nn.Identity(), sparse(16, 32, "blocks 16"), nn.Tanh(), sparse(8, 16), sparse(4, 8))
    with counted_products() as calls:
        model(torch.randn(3, 64))
    assert [name.rpartition("_")[0] for name in calls] == ["secateur_chain_product"] * 2


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("everywhere", [False, True], ids=["of one layer", "of all modules"])
def test_hooks_see_the_calls_of_each_layer(register: str, everywhere: bool) -> None:
    model, x = chain(sparse(32, 64), sparse(16, 32)), torch.randn(3, 64)
    expected = model(x)
    seen: list[nn.Module] = []
    add = getattr(nn.modules.module, register.replace("register", "register_module")) if everywhere else None
    add = add or getattr(model[1], register)
    handle = add(lambda module, *_: seen.append(module))
    try:
        assert torch.equal(model(x), expected)
    finally:
        handle.remove()
    assert model[1] in seen
    seen.clear()
    with counted_products() as calls:
        assert torch.equal(model(x), expected)
    assert (len(calls), seen) == (1, [])


@pytest.mark.parametrize("kind", [nn.Identity, nn.Tanh])
def test_hooks_of_other_parts_are_called(kind: type[nn.Module]) -> None:
    model, x = chain(sparse(32, 64), kind(), sparse(16, 32)), torch.randn(3, 64)
    model(x)
    model[1]._forward_hooks = OrderedDict()  # as code does that clears all hooks
    handle = model[1].register_forward_hook(lambda *_: torch.ones(3, 32))
    assert torch.equal(model(x), model[2](torch.ones(3, 32)))
    handle.remove()
    assert torch.equal(model(x), one_by_one(model, x))


def test_first_calls_of_several_threads_give_what_later_ones_do() -> None:
    x, interval = torch.randn(1, 64), sys.getswitchinterval()
    layers = [sparse(64, 64) for _ in range(3)]
    expected = one_by_one(layers, x)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(200):
                model = chain(*layers)
                assert all(torch.equal(y, expected) for y in pool.map(model, [x] * 8))
    finally:
        sys.setswitchinterval(interval)


def test_forward_in_place_of_a_layers_own_is_called() -> None:
    model, x = chain(sparse(32, 64), sparse(16, 32)), torch.randn(3, 64)
    model(x)
    model[0].forward = lambda x: torch.zeros(len(x), 32)
    assert torch.equal(model(x), one_by_one(model, x))
    assert torch.equal(model(x), model[1](torch.zeros(3, 32)))


def test_layer_that_is_replaced_removed_or_added_is_noticed() -> None:
    model, x = chain(sparse(32, 64), sparse(32, 32), sparse(16, 32)), torch.randn(3, 64)
    model(x)
    model[1] = sparse(32, 32)
    assert torch.equal(model(x), one_by_one(model, x))
    del model[1]
    assert torch.equal(model(x), one_by_one(model, x))
    model.append(nn.Softmax(-1))
    assert torch.equal(model(x), one_by_one(model, x))


def test_widths_that_do_not_fit_are_an_error_as_without_a_chain() -> None:
    model = chain(sparse(32, 64), sparse(16, 33))
    with pytest.raises(ShapeError, match="another width"):
        model(torch.randn(3, 64))


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.ones(3, 65), ShapeError),
        (torch.tensor(1.0), ShapeError),
        (torch.ones(3, 64).double(), InvalidInputError),
        (torch.ones(3, 64).to_sparse(), InvalidInputError),
        (torch.ones(3, 64, device="meta"), InvalidInputError),
        (torch.ones(3, 64, requires_grad=True), UnsupportedError),
    ],
    ids=["width", "scalar", "dtype", "layout", "device", "grad"],
)
def test_input_that_the_first_layer_refuses_is_refused(x: Tensor, error: type[Exception]) -> None:
    with pytest.raises(error):
        chain(sparse(32, 64), sparse(16, 32))(x)


def test_input_in_any_memory_order_is_taken() -> None:
    model = chain(sparse(32, 64), sparse(16, 32))
    x = torch.randn(64, 3).t()
    assert torch.equal(model(x), model(x.contiguous()))
    assert torch.equal(model(nn.Parameter(x, requires_grad=False)), model(x))
    assert torch.equal(model(torch._neg_view(x)), model(-x))


def test_mode_sees_an_op_for_each_layer() -> None:
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model, x = chain(sparse(32, 64), sparse(16, 32)), torch.randn(3, 64)
    expected = model(x)
    with Mode():
        assert torch.equal(model(x), expected)
    assert seen.count("secateur.sparse_linear.default") == 2


def test_chain_can_be_compiled_and_exported() -> None:
    model, x = chain(sparse(32, 64), nn.Identity(), sparse(16, 32)), torch.randn(3, 64)
    expected = model(x)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    assert torch.allclose(program.module()(x[:2]), expected[:2], atol=1e-5)
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), expected)


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copy_points_to_its_own_layers(through: Any) -> None:
    model, x = chain(sparse(32, 64), sparse(16, 32)), torch.randn(3, 64)
    expected = model(x)
    other = through(model)
    model[0] = sparse(32, 64)
    assert torch.equal(other(x), expected)
    other[0].register_forward_hook(lambda *_: torch.zeros(3, 32))
    assert torch.equal(other(x), other[1](torch.zeros(3, 32)))


def test_module_of_a_class_of_its_own_is_called() -> None:
    class Noisy(SparseLinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    first, second = sparse(32, 64), sparse(16, 32)
    second.__class__ = Noisy
    model, x = chain(first, second), torch.randn(3, 64)
    assert torch.equal(model(x), second(first(x)))
    assert not torch.equal(model(x), SparseLinear.forward(second, first(x)))


@pytest.mark.parametrize("first", HERE)
@pytest.mark.parametrize("second", HERE)
def test_autocast_does_not_change_what_one_product_hands_to_the_next(first: str, second: str) -> None:
    model, x = chain(sparse(64, 48, first), sparse(32, 64, second)), torch.randn(70, 48)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = [model(rows) for rows in (x, x[:1])]
    assert torch.equal(found[0], expected)
    torch.testing.assert_close(found[1], expected[:1])
