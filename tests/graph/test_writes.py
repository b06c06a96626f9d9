"""A forward that writes into its own parameters leaves no trace after a look at it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from secateur import UnsupportedError, shrink_
from secateur.graph import analyze
from secateur.shrink import plan_shrink


class Writing(nn.Module):
    """A layer whose weights are written before they are used."""

    def __init__(self, write: Callable[[nn.Parameter], object]) -> None:
        super().__init__()
        self.a, self.b, self.write = nn.Linear(4, 6), nn.Linear(6, 3), write

    def forward(self, x: Tensor) -> Tensor:
        self.write(self.a.weight)
        return self.b(torch.relu(self.a(x)))


def renewed(weight: nn.Parameter) -> None:
    weight.data = weight.data.sign()


def fails(weight: nn.Parameter) -> None:
    weight.data.mul_(2)
    raise KeyError("the model's own")


@torch.no_grad()
def clamped(weight: nn.Parameter) -> None:
    weight.clamp_(-0.1, 0.1)


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "clamped": clamped,
    "clamped data": lambda weight: weight.data.clamp_(-0.1, 0.1),
    "a view": lambda weight: weight.data[1:].zero_(),
    "renormed": lambda weight: weight.data.renorm_(2, 0, 0.1),
    "new data": renewed,
}


@pytest.mark.parametrize("name", WRITES)
def test_parameters_that_a_forward_writes_are_put_back(name: str) -> None:
    torch.manual_seed(0)
    model, x = Writing(WRITES[name]), torch.randn(5, 4)
    before, memory = copy.deepcopy(model.state_dict()), model.a.weight.data_ptr()
    written = copy.deepcopy(model)
    written(x)
    assert not torch.equal(written.a.weight, before["a.weight"])
    analyze(model, x)
    plan = plan_shrink(model, x, sparsity=0.5)
    assert plan.verify(model, x).is_right
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert model.a.weight.data_ptr() == memory
    cut = plan.apply_to(before)
    shrink_(model, x, sparsity=0.5, verify=True)
    assert all(torch.equal(tensor, cut[key]) for key, tensor in model.state_dict().items())


def test_they_are_put_back_after_an_error_of_the_model_as_well() -> None:
    model = Writing(fails)
    before = model.a.weight.detach().clone()
    with pytest.raises(KeyError, match="the model's own"):
        analyze(model, torch.randn(5, 4))
    assert torch.equal(model.a.weight, before)


def test_a_table_with_a_largest_norm_is_not_renormed_by_looking_at_it() -> None:
    model = nn.Sequential(nn.Embedding(11, 8, max_norm=0.1), nn.Linear(8, 3))
    before = model[0].weight.detach().clone()
    analyze(model, torch.randint(0, 11, (3, 4)))
    assert torch.equal(model[0].weight, before)


class Outside(nn.Module):
    """Something between two layers that torch does not see."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.between = nn.Linear(6, 7), nn.Linear(7, 4), nn.Linear(4, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(self.between(torch.relu(self.a(x))))))


@pytest.mark.parametrize(
    "between",
    [
        lambda h: torch.from_numpy(h.detach().numpy().copy()),
        lambda h: torch.tensor(h.tolist()),
        lambda h: torch.from_numpy(h.detach().numpy()),
    ],
)
def test_a_width_that_leaves_torch_is_kept_whole_and_says_why(between: Callable[[Tensor], Tensor]) -> None:
    model, x = Outside(between), torch.randn(5, 6)
    coupling = analyze(model, x)
    assert [(group.name, len(group.units)) for group in coupling.groups] == [("b.weight[0]", 4)]
    assert "handed to code outside torch" in coupling.why_kept("a.weight", 0, 0)
    smaller = plan_shrink(model, x, sparsity=0.5).apply_(model)
    assert smaller(x).shape == (5, 2)


def test_an_error_is_still_one() -> None:
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(5, 4)
    plan = plan_shrink(model, x, sparsity=0.5)
    broken = copy.deepcopy(model)
    broken.register_forward_hook(lambda module, inputs, output: output * 2 if module[0].out_features < 6 else output)
    with pytest.raises(UnsupportedError, match=r"computes something else"):
        plan.apply_(broken, verify=x)
    assert broken[0].weight.shape == (6, 4)
