"""Parameters, zeros and bytes of tensors that are shared, sparse, small or packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.runtime.profile_sizes import bytes_in
from tests.runtime.nets import sizes


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("view", self.table.weight.detach()[2:])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens))


def test_tied_and_shared_memory_counts_once() -> None:
    row = sizes(Tied(), torch.tensor([[1, 2, 3]]))
    assert (row.parameters, row.bytes, row.macs) == (28, 4 * 28, 3 * 28)


def test_a_view_of_a_larger_storage_counts_with_all_of_it() -> None:
    model = nn.Linear(8, 8, bias=False)
    model.weight.data = model.weight.data[:2]
    row = sizes(model, torch.randn(1, 8))
    assert (row.parameters, row.bytes) == (16, 4 * 64)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_parameter_counts_what_it_holds(layout: torch.layout) -> None:
    dense = torch.zeros(4, 6)
    dense[1, 2] = dense[3, 0] = 1.0
    blocks = {"blocksize": (1, 1)} if layout == torch.sparse_bsr else {}
    model = nn.Module()
    model.weight = nn.Parameter(dense.to_sparse(layout=layout, **blocks).clone(), requires_grad=False)
    model.forward = lambda x: model.weight @ x  # type: ignore[method-assign]
    row = sizes(model, torch.randn(6, 5))
    indices = {torch.sparse_coo: 4, torch.sparse_csr: 7, torch.sparse_csc: 9, torch.sparse_bsr: 7}[layout]
    assert (row.parameters, row.nonzeros, row.bytes) == (24, 2, 8 * indices + 4 * 2)
    assert (row.macs, row.nonzero_macs) == (4 * 6 * 5, 2 * 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_parameters_of_few_bits_are_counted(dtype: torch.dtype) -> None:
    model = nn.ReLU()
    model.weight = nn.Parameter(torch.eye(4).to(dtype), requires_grad=False)
    row = sizes(model)
    assert (row.parameters, row.nonzeros, row.bytes) == (16, 4, 16 * dtype.itemsize)


class Packed(nn.Module):
    """Stands for a linear layer without a bias; torch's dispatcher sees a product, of other sizes."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape, self.num_nonzero = weight.shape, int(weight.count_nonzero())
        self.register_buffer("packed", weight.to_sparse().values())

    def profile_counts(self) -> tuple[int, int]:
        return self.shape.numel(), self.num_nonzero

    def forward(self, x: Tensor) -> Tensor:
        unused = torch.zeros(3, 3) @ torch.zeros(3, 3)
        return x.new_zeros(*x.shape[:-1], self.shape[0]) + unused[0, 0]


def test_a_packed_layer_counts_as_the_one_that_it_replaces_with_the_bytes_that_it_has() -> None:
    weight = torch.tril(torch.ones(6, 6))
    model = nn.Sequential(Packed(weight), nn.Linear(6, 1, bias=False))
    x = torch.randn(5, 2, 6)
    row = sizes(model, x)
    assert (row.parameters, row.nonzeros, row.bytes) == (42, 21 + 6, 4 * (21 + 6))
    assert (row.macs, row.nonzero_macs) == (10 * 42, 10 * 27)
    assert row.note == ""
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


class Wrapper(nn.Module):
    """Has the attributes of what is inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def test_a_wrapper_that_has_the_attributes_of_a_packed_layer_does_not_count_it_again() -> None:
    layer = Packed(torch.tril(torch.ones(6, 6)))
    shared = nn.Sequential(Wrapper(layer), layer)
    row = sizes(shared, torch.randn(5, 6))
    assert (row.parameters, row.nonzeros, row.bytes) == (36, 21, 4 * 21)
    assert (row.macs, row.nonzero_macs) == (2 * 5 * 36, 2 * 5 * 21)


def test_bytes_count_tied_parameters_once_and_buffers_too() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    assert bytes_in(model) == 4 * (9 + 3 + 4 * 3) + 8
    assert bytes_in(nn.Linear(2, 2).half()) == 12
