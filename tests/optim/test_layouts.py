"""Parameters without a mask, in any layout of memory: torch's fused kernels would take all for one dense block."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.optim.cases import Case, by_case, by_path, path


def transposed(gradient: Tensor) -> Tensor:
    return gradient.t().contiguous().t()


def sliced(gradient: Tensor) -> Tensor:
    return gradient.repeat_interleave(2, 1)[:, ::2]


def expanded(gradient: Tensor) -> Tensor:
    return gradient[:, :1].expand_as(gradient)


@pytest.mark.parametrize("layout", [transposed, sliced, expanded])
@by_path
@by_case
def test_gradients_in_any_layout_are_taken(case: Case, is_native: bool, layout: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    one = nn.Parameter(torch.randn(5, 7))
    other = copy.deepcopy(one)
    with path(is_native):
        optimizer, reference = case.make([one]), case.make([other])
        for _ in range(4):
            one.grad = layout(torch.randn(5, 7))
            other.grad = one.grad.contiguous()
            optimizer.step()
            reference.step()
    assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@by_path
@by_case
def test_a_model_may_change_its_memory_order_in_mid_training(case: Case, is_native: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3)
    same = copy.deepcopy(conv)
    with path(is_native):
        optimizer, reference = case.make(conv.parameters()), case.make(same.parameters())
        for step in range(6):
            x = torch.randn(2, 3, 6, 6)
            for model, steps in ((conv, optimizer), (same, reference)):
                steps.zero_grad()
                model(x).square().sum().backward()
                steps.step()
            if step == 2:
                conv.to(memory_format=torch.channels_last)
    assert not conv.weight.is_contiguous()
    assert torch.allclose(conv.weight, same.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wide", [8, 16], ids=["dense gradient", "gradient laid out alike"])
@by_path
@by_case
def test_nothing_beside_a_parameter_is_written_to(case: Case, is_native: bool, wide: int) -> None:
    whole = torch.zeros(4, 16)
    parameter, copied = nn.Parameter(whole[:, :8]), nn.Parameter(torch.zeros(4, 8))
    with path(is_native):
        optimizer, reference = case.make([parameter]), case.make([copied])
        for _ in range(3):
            parameter.grad, copied.grad = torch.ones(4, wide)[:, :8], torch.ones(4, 8)
            optimizer.step()
            reference.step()
    assert not whole[:, 8:].any()
    assert torch.allclose(parameter, copied)
