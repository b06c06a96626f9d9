"""Dense gradients kept aside: equal to those of plain autograd, while the gradient itself is masked."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks
from secateur.masks.capture import Capture
from secateur.masks.mask import Mask
from secateur.masks.registry import mask_of
from tests.masks.oracles import half, is_zero

pytestmark = pytest.mark.usefixtures("by")


def watched(layer: nn.Module, *, lean: bool = False) -> Mask:
    Masks.from_dict(layer, {"weight": half(layer.weight.shape)}, lean=lean)
    mask = mask_of(layer.weight)
    mask.capture = Capture()
    return mask


def loss_of(layer: nn.Module, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(layer, nn.Embedding):
        return layer(torch.randint(6, (9,), generator=generator)).pow(2).sum() * seed
    return layer(torch.randn(3, 6, generator=generator).to(layer.weight.dtype)).abs().pow(2).sum()


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 6),
        nn.Linear(6, 6, dtype=torch.bfloat16),
        nn.Linear(6, 6, dtype=torch.complex64),
        nn.Embedding(6, 4, sparse=True),
    ],
    ids=["float32", "bfloat16", "complex64", "sparse"],
)
@pytest.mark.parametrize("num_passes", [1, 2, 3])
def test_sum_over_passes_is_that_of_autograd(num_passes: int, layer: nn.Module, lean: bool) -> None:
    layer = copy.deepcopy(layer)
    mask = watched(layer, lean=lean)
    expected = torch.zeros_like(layer.weight)
    for seed in range(1, num_passes + 1):
        loss = loss_of(layer, seed)
        expected += torch.autograd.grad(loss, layer.weight, retain_graph=True)[0].to_dense()
        loss.backward()
        assert is_zero(layer.weight.grad.to_dense()[~mask.bits.dense])
    torch.testing.assert_close(mask.capture.total, expected)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_passes_before_the_gradient_was_zeroed_are_forgotten(set_to_none: bool) -> None:
    layer = nn.Linear(6, 6)
    mask = watched(layer)
    for seed in (1, 2):
        layer.zero_grad(set_to_none=set_to_none)
        loss_of(layer, seed).backward()
    expected = torch.autograd.grad(loss_of(layer, 2), layer.weight)[0]
    torch.testing.assert_close(mask.capture.total, expected)


def test_clipping_and_scaling_before_the_step_do_not_touch_it() -> None:
    layer = nn.Linear(6, 6)
    mask = watched(layer)
    loss_of(layer, 1).backward()
    expected = torch.autograd.grad(loss_of(layer, 1), layer.weight)[0]
    nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    with torch.no_grad():
        layer.weight.grad.mul_(0.5)
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    torch.testing.assert_close(mask.capture.total, expected)


def test_nothing_is_kept_unless_it_is_asked_for_and_copies_ask_for_nothing() -> None:
    layer = nn.Linear(6, 6)
    mask = watched(layer)
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert [mask_of(each.weight).capture for each in copies] == [None, None]
    mask.capture = None
    loss_of(layer, 1).backward()
    assert mask.capture is None
    mask.capture = Capture()
    Masks(layer).remove()
    assert mask.capture is None
