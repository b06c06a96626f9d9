"""MACs, and those with a weight that is not zero, against counts by hand and by the analysis of models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import secateur
from secateur.graph import analyze
from tests.graph.structures import Structure
from tests.graph.test_structures import ALL
from tests.runtime.nets import net, sizes


@pytest.mark.parametrize("name", ALL)
def test_macs_of_every_structure_are_those_of_its_analysis(name: str) -> None:
    structure: Structure = ALL[name]
    model = structure.make().eval()
    inputs = tuple(torch.randn(shape) if isinstance(shape, tuple) else shape for shape in structure.inputs)
    coupling = analyze(model, inputs)
    assert sizes(model, inputs).macs == coupling.macs()


def test_counts_of_a_small_net_are_those_by_hand() -> None:
    row = sizes(net())
    parameters = 4 * 3 * 9 + 4 + 4 + 4 + 5 * 36 + 5
    assert row.parameters == parameters
    assert row.nonzeros == parameters - 4  # the shift of a fresh norm
    assert row.macs == row.nonzero_macs == 2 * (4 * 9 * 27 + 36 * 5)
    assert row.bytes == 4 * (parameters + 4 + 4) + 8  # running mean and variance, and a counter of 64 bits


@given(batch=st.integers(0, 3), inputs=st.integers(1, 5), outputs=st.integers(1, 5), seed=st.integers(0, 99))
def test_macs_with_a_zero_weight_are_not_counted(batch: int, inputs: int, outputs: int, seed: int) -> None:
    model = nn.Linear(inputs, outputs)
    zero = torch.rand(outputs, inputs, generator=torch.Generator().manual_seed(seed)) < 0.5
    with torch.no_grad():
        model.weight.fill_(1).masked_fill_(zero, 0)
        model.bias.fill_(1)
    row = sizes(model, torch.zeros(batch, inputs))
    kept = sum(not is_zero for is_zero in zero.flatten().tolist())
    assert (row.macs, row.nonzero_macs, row.nonzeros) == (batch * inputs * outputs, batch * kept, kept + outputs)


def by_torch(model: nn.Sequential) -> None:
    prune.l1_unstructured(model[0], "weight", 0.75)


def by_secateur(model: nn.Sequential) -> None:
    secateur.prune_(model, sparsity=0.75, include="0.weight")


@pytest.mark.parametrize("mask", [by_torch, by_secateur])
def test_macs_of_a_masked_convolution_are_a_share_of_all(mask: Callable[[nn.Sequential], None]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False))
    mask(model)
    row = sizes(model)
    assert (row.macs, row.nonzero_macs) == (2 * 36 * 108, 2 * 36 * 27)


def test_macs_of_a_transposed_convolution_with_zeros() -> None:
    model = nn.ConvTranspose2d(3, 4, 2, stride=2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1).view(-1)[:36] = 0
    row = sizes(model)
    assert (row.macs, row.nonzero_macs) == (2 * 64 * 48, 2 * 64 * 12)


def test_macs_of_a_recurrent_layer_count_the_zeros_of_each_weight() -> None:
    model = nn.LSTM(3, 2, batch_first=True)
    with torch.no_grad():
        model.weight_ih_l0[:5] = 0
        model.weight_hh_l0[:, 0] = 0
    row = sizes(model, torch.randn(4, 6, 3))
    assert (row.macs, row.nonzero_macs) == (4 * 6 * (24 + 16), 4 * 6 * (9 + 8))


class Cache(nn.Module):
    """Writes its input into a buffer and multiplies by that: it is no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.copy_(x)
        return x @ self.cache


def test_zeros_of_activations_do_not_count() -> None:
    model = Cache()
    assert sizes(model, torch.zeros(3, 3)).nonzero_macs == 27
    assert sizes(model, torch.eye(3)).nonzero_macs == 27
