"""Zeros at positions that go: the same as by number, whatever the dtype, the layout and the values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.graph import Coupling, analyze
from secateur.graph.staying import Staying

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.fixture(scope="module")
def coupling() -> Coupling:
    return analyze(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(1, 4))


def values(dtype: torch.dtype) -> Tensor:
    found = torch.arange(1, 19).view(3, 6)
    return (found % 2 == 1) if dtype == torch.bool else found.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["new", "transposed", "expanded", "strided"])
def test_positions_that_go_are_zero_and_the_others_as_they_were(
    coupling: Coupling, dtype: torch.dtype, layout: str
) -> None:
    staying = Staying(coupling.solution, [coupling.groups[0].units[k] for k in (1, 4)])
    dims = coupling.dims["2.weight"]
    tensor = {
        "new": values(dtype),
        "transposed": values(dtype).T.contiguous().T,
        "expanded": values(dtype)[:1].expand(3, 6),
        "strided": values(dtype).repeat_interleave(2, 1)[:, ::2],
    }[layout]
    expected = tensor.clone()
    expected[:, [1, 4]] = 0
    assert torch.equal(staying.cleared(tensor, dims), expected)
    assert not torch.equal(tensor, expected)
    staying.clear_(tensor, dims)
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf"), -0.0])
def test_what_is_no_number_is_cleared_as_well(coupling: Coupling, strange: float) -> None:
    staying = Staying(coupling.solution, coupling.groups[0].units[:2])
    tensor = torch.full((3, 6), strange)
    staying.clear_(tensor, coupling.dims["2.weight"])
    assert torch.equal(tensor[:, :2], torch.zeros(3, 2))
    assert torch.equal(tensor[:, 2:].isnan(), torch.full((3, 4), strange != strange))


def test_where_nothing_goes_the_tensor_itself_is_given_back(coupling: Coupling) -> None:
    staying, tensor = Staying(coupling.solution, []), torch.randn(3, 6)
    assert staying.cleared(tensor, coupling.dims["2.weight"]) is tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_positions_of_two_dims_are_cleared_together_and_in_place(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    coupling = analyze(model, torch.zeros(1, 4))
    staying = Staying(coupling.solution, [group.units[0] for group in coupling.groups])
    tensor = torch.ones(6, 5, dtype=dtype)
    staying.clear_(tensor, coupling.dims["2.weight"])
    expected = torch.ones(6, 5, dtype=dtype)
    expected[0], expected[:, 0] = 0, 0
    assert torch.equal(tensor, expected)
