"""The outline of a run: products give zeros of the right shape and layout; what needs values is run in earnest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.graph import analyze
from secateur.graph.labels import size_of
from secateur.graph.outlining import Outline, in_earnest, outlined_first


class Executing(TorchDispatchMode):
    """Runs ops through a function, and writes down which ones it was."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        super().__init__()
        self.execute = execute
        self.seen: list[tuple[str, Sequence[int], Sequence[int]]] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        out = self.execute(func, args, kwargs or {})
        if isinstance(out, Tensor):
            self.seen.append((str(func), out.shape, out.stride()))
        return out


def ops_of(run: Callable[[], object], execute: Callable[..., Any]) -> list[tuple[str, Sequence[int], Sequence[int]]]:
    with torch.no_grad(), Executing(execute) as mode:
        run()
    return mode.seen


sizes = st.integers(1, 5)


@given(st.data())
def test_convolutions_have_the_shape_and_layout_that_they_have_in_earnest(data: st.DataObject) -> None:
    rank, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    inside, outside = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    dilation, stride = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    padding = data.draw(st.integers(0, 2))
    images = torch.randn(data.draw(sizes), inside, *(data.draw(st.integers(5, 7)) for _ in range(rank)))
    if rank == 2 and data.draw(st.booleans()):
        images = images.to(memory_format=torch.channels_last)
    weight, bias = torch.randn(outside, inside // groups, *kernel), data.draw(st.sampled_from([None, "bias"]))
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]

    def run() -> Tensor:
        given = None if bias is None else torch.ones(outside)
        return convolve(images, weight, given, stride, padding, dilation, groups)

    assert ops_of(run, Outline()) == ops_of(run, in_earnest)


@given(sizes, sizes, sizes, sizes, st.booleans(), st.booleans())
def test_products_have_the_shape_and_layout_that_they_have_in_earnest(
    batch: int, rows: int, inside: int, columns: int, is_transposed: bool, has_bias: bool
) -> None:
    left, right = torch.randn(batch, rows, inside), torch.randn(batch, inside, columns)
    if is_transposed:
        left = torch.randn(rows, batch, inside).transpose(0, 1)
        right = torch.randn(batch, columns, inside).transpose(1, 2)
    weight, bias = torch.randn(columns, inside), torch.randn(columns) if has_bias else None

    def run() -> None:
        assert (left @ right).shape == (batch, rows, columns)
        functional.linear(left, weight, bias)
        functional.linear(left[0], weight, bias)
        torch.addmm(torch.ones(rows, columns), left[0], right[0])
        torch.addmm(torch.ones(columns), left[0], right[0], beta=0.5)

    assert ops_of(run, Outline()) == ops_of(run, in_earnest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("layout", ["new", "transposed", "expanded", "images", "scalar"])
def test_functions_have_the_shape_and_layout_that_they_have_in_earnest(dtype: torch.dtype, layout: str) -> None:
    tensor = {
        "new": torch.ones(2, 3, 4),
        "transposed": torch.ones(2, 3, 4).transpose(0, 2),
        "expanded": torch.ones(1, 3).expand(2, 3),
        "images": torch.ones(2, 1, 4, 4).to(memory_format=torch.channels_last),
        "scalar": torch.ones(()),
    }[layout].to(dtype)

    def run() -> None:
        for function in (torch.sigmoid, torch.tanh, torch.exp, torch.erf):
            function(tensor)
        for function in (functional.gelu, functional.silu, functional.softplus, functional.mish):
            if tensor.is_floating_point():
                function(tensor)
        torch.softmax(tensor, -1, dtype=torch.float32)
        if tensor.is_floating_point():
            torch.softmax(tensor, -1)

    assert ops_of(run, Outline()) == ops_of(run, in_earnest)


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.bmm(torch.ones(1, 2, 3), torch.ones(2, 3, 2)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2).double()),
        lambda: functional.conv2d(torch.ones(1, 4, 5, 5), torch.ones(2, 3, 3, 3)),
        lambda: functional.conv2d(torch.ones(1, 3, 5, 5), torch.ones(2, 3, 3, 3), torch.ones(3)),
        lambda: functional.conv2d(torch.ones(1, 3, 2, 2), torch.ones(2, 3, 3, 3)),
        lambda: torch.addmm(torch.ones(5), torch.ones(2, 3), torch.ones(3, 4)),
    ],
)
def test_what_does_not_fit_raises_the_error_of_torch(run: Callable[[], Tensor]) -> None:
    with pytest.raises(RuntimeError) as theirs:
        run()
    with pytest.raises(RuntimeError) as ours, Executing(Outline()):
        run()
    assert str(ours.value) == str(theirs.value)


class Two(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(3, 6), nn.Linear(6, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def swallowed(h: Tensor) -> Tensor:
    try:
        return h * float(h.abs().sum() > 0)
    except Exception:  # as a careless model does
        return h[:, :0]


READING: dict[str, Callable[[Tensor], Tensor]] = {
    "a branch": lambda h: h if h.abs().sum() > 0 else h[:, :0],
    "an item": lambda h: h[:, : 6 if h.abs().max().item() > 0 else 0],
    "a list": lambda h: h if any(any(row) for row in h.tolist()) else h[:, :0],
    "numpy": lambda h: h if np.asarray(h.detach()).any() else h[:, :0],
    "numpy()": lambda h: h if h.detach().numpy().any() else h[:, :0],
    "nonzero": lambda h: h if len(h.nonzero()) else h[:, :0],
    "a mask": lambda h: h if h[h != 0].numel() else h[:, :0],
    "unique": lambda h: h if h.unique().numel() > 1 else h[:, :0],
    "equal": lambda h: h[:, :0] if torch.equal(h, torch.zeros_like(h)) else h,
    "an error on zeros": lambda h: (
        h * torch.linalg.inv(h.T @ h + 1e-6 * torch.eye(6)).trace() * 0 + h
        if torch.linalg.cholesky(h.T @ h + torch.eye(6) * 1e-3 * h.abs().max()).any()
        else h
    ),
    "an error that the model swallows": swallowed,
}


@pytest.mark.parametrize("name", READING)
def test_a_model_that_looks_at_values_is_analysed_with_its_values(name: str) -> None:
    torch.manual_seed(0)
    coupling = analyze(Two(READING[name]), torch.randn(9, 3))
    assert coupling.by_values
    last = coupling.ran[-1]
    assert (last.name, [size_of(dim) for dim in last.inputs[1]]) == ("aten.addmm", [9, 6])


def test_a_model_that_looks_at_no_values_is_analysed_without_them() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not analyze(model, torch.randn(2, 3, 5, 5)).by_values
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_look_at_what_was_given_needs_no_product() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(5, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) if x.max().item() < 5 else self.a(x)

    assert not analyze(Counted(), torch.tensor([[0, 3]])).by_values


def test_the_users_own_error_comes_through() -> None:
    with pytest.raises(RuntimeError, match=r"mat1 and mat2") as caught:
        analyze(nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2)), torch.randn(2, 3))
    assert "as secateur ran it" in caught.value.__notes__[0]


def test_a_run_is_made_again_in_earnest_only_if_the_outline_failed() -> None:
    calls: list[bool] = []

    def run(outline: Outline | None, *, fails: bool) -> str:
        calls.append(outline is not None)
        if fails and outline is not None:
            raise ValueError("zeros")
        return "done"

    assert outlined_first(lambda outline: run(outline, fails=False)) == "done"
    assert outlined_first(lambda outline: run(outline, fails=True)) == "done"
    assert calls == [True, True, False]
