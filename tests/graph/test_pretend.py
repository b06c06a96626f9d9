"""A model run as if units were gone, against the smaller model and against sums over what stays, by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur._errors import UnsupportedError
from secateur.graph import analyze
from secateur.graph.factors import only_factors
from secateur.graph.pretend import Foreseen, run_without
from secateur.graph.trace import call_with, undisturbed
from secateur.shrink import plan_of


class Normed(nn.Module):
    """Everything that combines positions of one residual stream: norms, a softmax over channels, a mean."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem, self.norm, self.out = nn.Linear(5, width), nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        x = x * torch.softmax(x, -1) + x.mean(-1, keepdim=True) + x.var(-1, keepdim=True)
        return self.out(x)


def by_hand(model: Normed, x: Tensor, kept: Tensor) -> Tensor:
    """The same, written for some of the channels."""
    x = x @ model.stem.weight[kept].T + model.stem.bias[kept]
    centred = x - x.sum(-1, keepdim=True) / len(kept)
    x = centred / (centred.square().sum(-1, keepdim=True) / len(kept) + model.norm.eps).sqrt()
    x = x * model.norm.weight[kept] + model.norm.bias[kept]
    mean = x.sum(-1, keepdim=True) / len(kept)
    spread = (x - mean).square().sum(-1, keepdim=True) / (len(kept) - 1)
    x = x * x.exp() / x.exp().sum(-1, keepdim=True) + mean + spread
    return x @ model.out.weight[:, kept].T + model.out.bias


def test_what_norms_and_softmax_combine_is_what_stays() -> None:
    model, x = Normed().double(), torch.randn(4, 5, dtype=torch.float64)
    nn.init.normal_(model.norm.weight)
    coupling = analyze(model, x)
    units = coupling.groups[0].units[2:7]
    found = run_without(model, x, coupling, units).result
    torch.testing.assert_close(found, by_hand(model, x, torch.tensor([0, 1, 7, 8, 9, 10, 11])))
    smaller = plan_of(model, coupling, units).apply_(copy.deepcopy(model))
    torch.testing.assert_close(smaller(x), found)


def test_nothing_gone_is_the_model_itself() -> None:
    model, x = Normed(), torch.randn(4, 5)
    assert torch.equal(run_without(model, x, analyze(model, x), []).result, model(x))


def test_group_norm_keeps_its_groups() -> None:
    model = nn.Sequential(nn.Conv2d(3, 12, 1), nn.GroupNorm(4, 12), nn.Conv2d(12, 2, 1)).double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    coupling = analyze(model, x)
    for group in coupling.groups:
        smaller = plan_of(model, coupling, group.units[:1]).apply_(copy.deepcopy(model))
        torch.testing.assert_close(smaller(x), run_without(model, x, coupling, group.units[:1]).result)


def test_expanded_positions_are_not_taken_for_those_that_share_their_memory() -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.many, self.out = nn.Linear(3, 1), nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.one(x).expand_as(self.many(x)) * self.many(x))

    model, x = Repeated().double(), torch.randn(4, 3, dtype=torch.float64)
    coupling = analyze(model, x)
    units = coupling.groups[0].units[:2]
    smaller = plan_of(model, coupling, units).apply_(copy.deepcopy(model))
    torch.testing.assert_close(run_without(model, x, coupling, units).result, smaller(x))


def test_another_run_than_the_analysed_one_is_refused() -> None:
    model, x = nn.Sequential(nn.Linear(3, 6), nn.Dropout(), nn.Linear(6, 2)), torch.randn(4, 3)
    coupling = analyze(model.train(), x)
    with pytest.raises(UnsupportedError, match=r"came out of turn"):
        run_without(model.eval(), x, coupling, [])
    coupling = analyze(model.eval(), x)
    with pytest.raises(UnsupportedError, match=r"gives other sizes"):
        run_without(model, torch.randn(7, 3), coupling, [])


def test_shapes_of_the_smaller_model_are_those_predicted_and_of_another_are_not() -> None:
    model, x = Normed(), torch.randn(4, 5)
    coupling = analyze(model, x)
    units = coupling.groups[0].units[:4]
    smaller = plan_of(model, coupling, units).apply_(copy.deepcopy(model))
    for tried, wrong in ((smaller, ""), (model, "aten.t gave (5, 12) where (5, 8) was predicted (result 1)")):
        shapes = Foreseen(coupling, units)
        with undisturbed(tried), shapes:
            call_with(tried, x)
        assert shapes.compared > 0
        assert shapes.wrong == wrong


class Mixture(nn.Module):
    """Weights that are factors, and weights that are more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.down, self.up = nn.Embedding(7, 5), nn.Linear(5, 8), nn.Linear(8, 5)
        self.low, self.high = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8, 6))
        self.conv, self.norm, self.out = nn.Conv1d(5, 6, 3, padding=1), nn.LayerNorm(5), nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens))
        x = x + self.up(torch.sigmoid(self.down(x)))
        merged = self.low @ self.high  # two weights, multiplied with each other
        centred = self.conv.weight - self.conv.weight.mean((1, 2), keepdim=True)  # and one that is averaged
        x = functional.conv1d(x.transpose(1, 2), centred, self.conv.bias, padding=1).transpose(1, 2)
        return self.out(x @ merged + 1)


def test_only_factors_of_activations_are_spared() -> None:
    torch.manual_seed(0)
    coupling = analyze(Mixture().double(), torch.tensor([[0, 3, 2]]))
    assert only_factors(coupling) == {"table.weight", "down.weight", "up.weight", "out.weight"}


@pytest.mark.parametrize("strange", [1.0, float("nan"), float("inf")])
def test_spared_weights_are_as_good_as_emptied_ones(strange: float) -> None:
    torch.manual_seed(0)
    model, tokens = Mixture().double(), torch.tensor([[0, 3, 2], [1, 1, 6]])
    coupling = analyze(model, tokens)
    units = [unit for group in coupling.groups for unit in group.units[1::2]]
    positions = coupling.positions(units)
    for (name, d), stays in positions.items():
        gone = torch.from_numpy(~stays).nonzero()[:, 0]
        with torch.no_grad():
            model.get_parameter(name).index_fill_(d, gone, strange)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = run_without(model, tokens, coupling, units).result
    smaller = plan_of(model, coupling, units).apply_(copy.deepcopy(model))
    torch.testing.assert_close(found, smaller(tokens))
    assert found.isfinite().all()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_after_an_error_the_model_has_its_own_values_again() -> None:
    model, x = Normed(), torch.randn(4, 5)
    coupling = analyze(model, x)
    memory = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(UnsupportedError, match=r"gives other sizes"):
        run_without(model, torch.randn(7, 5), coupling, coupling.groups[0].units[:4])
    assert [parameter.data_ptr() for parameter in model.parameters()] == memory


def test_weights_that_meet_the_input_itself_are_emptied() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.index_fill(0, torch.tensor([0]), 0.0)) + self.b(x)

    model, x = Twice().double(), torch.randn(5, 4, dtype=torch.float64)
    coupling = analyze(model, x, prune_inputs=True)
    gone = coupling.groups[0].units[1:3]
    kept = torch.tensor([0, 3])
    filled = torch.cat([torch.zeros(1, 4, dtype=torch.float64), x[1:]])
    by_hand = filled[:, kept] @ model.a.weight[:, kept].T + model.a.bias
    by_hand = by_hand + x[:, kept] @ model.b.weight[:, kept].T + model.b.bias
    torch.testing.assert_close(run_without(model, x, coupling, gone).result, by_hand)
