"""BatchNorm goes into the layer before it where the model stays the same function, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from secateur.runtime.norms import fold_, foldable, has_hooks
from secateur.runtime.observing import observe
from secateur.runtime.recipe import held, inside
from tests.shrink.models import randomized

KINDS = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm)


def pairs_of(model: nn.Module, x: Tensor) -> dict[str, str]:
    return dict(foldable(model, observe(model, x, KINDS)))


def folded(model: nn.Module, pairs: dict[str, str]) -> nn.Module:
    holder = held(copy.deepcopy(model))
    fold_(inside(holder), pairs)
    return inside(holder)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def pair(layer: nn.Module, norm: nn.Module) -> nn.Module:
    return randomized(nn.Sequential(layer, norm, nn.Tanh()))


def without_affine(norm: Any) -> Any:
    return type(norm)(norm.num_features, affine=False)


FOLDED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: pair(nn.Linear(4, 6), nn.BatchNorm1d(6)), (5, 4)),
    "Linear without bias": (lambda: pair(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6)), (5, 4)),
    "Conv1d": (lambda: pair(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), (2, 4, 9)),
    "Conv2d": (lambda: pair(nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)), (2, 4, 5, 7)),
    "Conv2d in groups": (lambda: pair(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 5, 7)),
    "Conv2d with reflected padding": (
        lambda: pair(nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6)),
        (2, 4, 5, 7),
    ),
    "Conv3d": (lambda: pair(nn.Conv3d(4, 6, (1, 2, 3)), nn.BatchNorm3d(6)), (2, 4, 3, 4, 5)),
    "no affine": (lambda: pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), (2, 4, 5, 7)),
    "no affine, no bias": (lambda: pair(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, affine=False)), (5, 4)),
    "another eps": (lambda: pair(nn.Linear(4, 6), nn.BatchNorm1d(6, eps=0.3)), (5, 4)),
    "no momentum": (lambda: pair(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None)), (5, 4)),
}


@pytest.mark.parametrize("kind", FOLDED)
def test_folded_layer_is_layer_and_norm(kind: str) -> None:
    build, shape = FOLDED[kind]
    model, x = build(), double(*shape)
    assert pairs_of(model, x) == {"0": "1"}
    fast = folded(model, {"0": "1"})
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-12)
    assert type(fast[1]) is nn.Identity
    assert not any(parameter.requires_grad for parameter in fast[0].parameters())


def test_zeros_of_a_weight_stay_zeros_and_the_dtype_stays() -> None:
    model = pair(nn.Linear(40, 6), nn.BatchNorm1d(6)).to(torch.bfloat16)
    model[0].weight.data[torch.rand(6, 40) < 0.8] = 0
    fast = folded(model, {"0": "1"})
    assert torch.equal(fast[0].weight != 0, model[0].weight != 0)
    assert fast[0].weight.dtype == fast[0].bias.dtype == torch.bfloat16


def test_sums_are_in_double_precision() -> None:
    model = pair(nn.Linear(4, 6), nn.BatchNorm1d(6)).float()
    exact, fast = folded(copy.deepcopy(model).double(), {"0": "1"}), folded(model, {"0": "1"})
    assert torch.equal(fast[0].weight, exact[0].weight.float())
    assert torch.equal(fast[0].bias, exact[0].bias.float())


def test_several_norms_fold_each_into_its_layer() -> None:
    blocks = [nn.Sequential(nn.Conv2d(c, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for c in (3, 4, 4)]
    model, x = (
        randomized(nn.Sequential(*blocks, nn.Flatten(1), nn.Linear(100, 4), nn.BatchNorm1d(4))),
        double(2, 3, 5, 5),
    )
    pairs = pairs_of(model, x)
    assert pairs == {"0.0": "0.1", "1.0": "1.1", "2.0": "2.1", "4": "5"}
    torch.testing.assert_close(folded(model, pairs)(x), model(x), rtol=0, atol=1e-12)


class Block(nn.Module):
    """A convolution and a norm, used in a way that is given."""

    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def batch_norm(m: Any, x: Tensor) -> Tensor:
    return functional.batch_norm(x, m.norm.running_mean, m.norm.running_var, m.norm.weight, m.norm.bias)


KEPT: dict[str, Callable[[Any, Tensor], Any]] = {
    "a residual reads what the layer returns": lambda m, x: (y := m.conv(x)) + m.norm(y),
    "it is returned, too": lambda m, x: (m.norm(y := m.conv(x)), y),
    "a shared norm": lambda m, x: m.norm(m.conv(x)) + m.norm(x),
    "a shared layer": lambda m, x: m.norm(m.conv(x)) + m.conv(x),
    "two norms": lambda m, x: m.norm(y := m.conv(x)) + m.second(y),
    "a function of torch": lambda m, x: batch_norm(m, m.conv(x)),
    "an activation comes between": lambda m, x: m.norm(m.conv(x).relu()),
    "a view comes between": lambda m, x: m.norm(m.conv(x)[:, :, 1:]),
    "the norm comes first": lambda m, x: m.conv(m.norm(x)),
}


@pytest.mark.parametrize("how", KEPT)
def test_norm_that_is_not_alone_stays(how: str) -> None:
    assert pairs_of(randomized(Block(KEPT[how])), double(2, 4, 5, 5)) == {}


def test_norm_after_a_layer_with_more_dims_counts_other_things_and_stays() -> None:
    model = pair(nn.Linear(4, 6), nn.BatchNorm1d(5))
    assert pairs_of(model, double(2, 5, 4)) == {}


def test_norm_without_running_statistics_stays() -> None:
    assert pairs_of(pair(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False)), double(5, 4)) == {}


def test_other_kinds_stay() -> None:
    class Own(nn.BatchNorm1d):
        pass

    class OwnLayer(nn.Linear):
        pass

    for layer, norm in (
        (nn.Linear(4, 6), Own(6)),
        (OwnLayer(4, 6), nn.BatchNorm1d(6)),
        (nn.Linear(4, 6), nn.SyncBatchNorm(6)),
        (nn.ConvTranspose1d(4, 6, 1), nn.BatchNorm1d(6)),
        (parametrizations.weight_norm(nn.Linear(4, 6)), nn.BatchNorm1d(6)),
    ):
        model = pair(layer, norm)
        x = double(2, 4, 1) if isinstance(layer, nn.ConvTranspose1d) else double(5, 4)
        assert pairs_of(model, x) == {}


WATCHES: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda m: m.register_forward_hook(lambda *_: None),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "a forward of its own": lambda m: setattr(m, "forward", m.forward),
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("how", WATCHES)
def test_norm_stays_where_somebody_watches(how: str, place: int) -> None:
    model = pair(nn.Linear(4, 6), nn.BatchNorm1d(6))
    assert not has_hooks(model[place])
    WATCHES[how](model[place])
    assert has_hooks(model[place])
    assert pairs_of(model, double(5, 4)) == {}


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_norm_stays_where_the_layer_shares_a_parameter(name: str) -> None:
    model = pair(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model.append(nn.Linear(6, 6).double())
    setattr(model[3], name, getattr(model[0], name))
    assert pairs_of(model, double(5, 6)) == {}


def test_norm_that_is_reached_by_two_names_goes_under_both() -> None:
    model = randomized(Block(lambda m, x: m.alias(m.conv(x))))
    model.alias, x = model.norm, double(2, 4, 5, 5)
    pairs = pairs_of(model, x)
    assert pairs == {"conv": "norm"}
    torch.testing.assert_close(folded(model, pairs)(x), model(x), rtol=0, atol=1e-12)
