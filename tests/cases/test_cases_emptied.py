"""What users ran into when masks had emptied whole units, done with the library; and the neighbours of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from secateur import Masks, load_, patterns, prune_, save
from secateur.shrink import plan_shrink, shrink_
from tests.shrink.models import randomized

SEEDS = [0, 1, 2]


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# Case 64: dead rows become a smaller layer ----------------------------------------------------------------------------


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


@pytest.mark.parametrize("seed", SEEDS)
def test_case_64_half_of_the_rows_make_half_of_the_layer_and_of_its_file(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model, x = two_layers(), torch.randn(16, 512)
    save(model, tmp_path / "dense")
    mask = torch.ones(512, 512, dtype=torch.bool)
    mask[torch.randperm(512)[:256]] = False
    masks = Masks.from_dict(model, {"0.weight": mask})
    expected = model(x)
    plan = shrink_(model, x, masks=masks)
    assert tuple(model[0].weight.shape) == (256, 512)
    assert tuple(model[2].weight.shape) == (10, 256)
    assert model[0].weight.untyped_storage().nbytes() == 256 * 512 * 4
    before, after = plan.parameters
    assert after == pytest.approx(before / 2, rel=0.01)
    assert plan.macs[1] * 2 == plan.macs[0]
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    save(model, tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < 0.52 * (tmp_path / "dense").stat().st_size
    assert torch.equal(load_(two_layers(), tmp_path / "small")(x), model(x))


# Question 2: a small feed-forward net whose layers have been masked ---------------------------------------------------


class FeedForward(nn.Module):
    """Two layers, one of which is also asked for by itself."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.sc1, self.sc2 = nn.Linear(inputs, hidden), nn.Linear(hidden, inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.sc2(self.predict_hidden(x))

    def predict_hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.sc1(x))


@pytest.mark.parametrize("seed", SEEDS)
def test_question_2_units_that_the_mask_has_emptied_go_in_the_middle_of_training(seed: int) -> None:
    torch.manual_seed(seed)
    model, data = FeedForward(32, 64), torch.randn(256, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks = prune_(model, optimizer, sparsity=0.5, pattern=patterns.Channel(), include=["sc1.weight"])
    prune_(model, optimizer, sparsity=0.5, include=["sc2.weight"])
    losses = []

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(data) - data).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    train(50)
    before, parameters, names = model(data).detach(), list(model.parameters()), list(model.state_dict())
    zeros = (model.sc2.weight[:, masks["sc1.weight"].any(1)] == 0).sum()
    shrink_(model, data, masks=masks, optimizer=optimizer)
    assert tuple(model.sc1.weight.shape) == (32, 32)
    torch.testing.assert_close(model(data), before, rtol=0, atol=1e-5)
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert list(model.state_dict()) == names
    train(150)
    assert losses[50] == pytest.approx(losses[49], rel=0.05)
    assert losses[-1] < losses[50]
    assert (model.sc2.weight == 0).sum() == zeros
    assert model.predict_hidden(data).shape == (256, 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_question_2_neighbour_scattered_zeros_remove_the_units_that_they_happen_to_empty(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = randomized(FeedForward(8, 64)), double(16, 8)
    masks = prune_(model, sparsity=0.85)
    emptied = ~masks["sc1.weight"].any(1) | ~masks["sc2.weight"].any(0)
    assert 0 < int(emptied.sum()) < 64
    smaller = plan_shrink(model, x, masks=masks).apply_(copy.deepcopy(model))
    assert smaller.sc1.out_features == 64 - int(emptied.sum())
    new = double(32, 8)
    torch.testing.assert_close(smaller(new), model(new), rtol=0, atol=1e-10)


# Case 24: units of an LSTM --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_case_24_neighbour_units_of_an_lstm_that_nothing_reads_go_from_every_gate(seed: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(12, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    torch.manual_seed(seed)
    model, x = randomized(Model()), double(2, 3, 12)
    gone = [1, 3, 4, 6]
    read = {"rnn.weight_hh_l0": torch.ones(32, 8, dtype=torch.bool), "head.weight": torch.ones(2, 8, dtype=torch.bool)}
    for mask in read.values():
        mask[:, gone] = False
    masks = Masks.from_dict(model, read)
    smaller = plan_shrink(model, x, masks=masks).apply_(copy.deepcopy(model))
    found = {name: tuple(p.shape) for name, p in smaller.rnn.named_parameters()}
    assert found == {
        "weight_ih_l0": (16, 12),
        "weight_hh_l0": (16, 4),
        "bias_ih_l0": (16,),
        "bias_hh_l0": (16,),
    }
    assert (smaller.rnn.hidden_size, smaller.head.in_features) == (4, 4)
    new = double(5, 7, 12)
    torch.testing.assert_close(smaller(new), model(new), rtol=0, atol=1e-10)


# Case 22: never an empty layer ----------------------------------------------------------------------------------------


def test_case_22_neighbour_a_layer_that_is_masked_as_a_whole_keeps_one_unit_and_says_so() -> None:
    torch.manual_seed(0)
    model, x = randomized(FeedForward(4, 6)), double(8, 4)
    masks = Masks.from_dict(model, {"sc1.weight": torch.zeros(6, 4, dtype=torch.bool)})
    plan = plan_shrink(model, x, masks=masks)
    assert [(group.before, group.after) for group in plan.groups] == [(6, 1)]
    assert any("at least one unit must remain" in line for line in plan.kept_whole)
    smaller = plan.apply_(copy.deepcopy(model))
    torch.testing.assert_close(smaller(x), model(x), rtol=0, atol=1e-10)
