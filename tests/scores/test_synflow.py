from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import InvalidInputError, UnsupportedError, allocation, prune_
from secateur.scores import synflow
from tests.scores.models import whole_state


def mlp(*sizes: int, seed: int = 0) -> nn.Sequential:
    """Linear layers without biases and ReLU: the network of the paper's theorems."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for one, next_one in pairwise(sizes):
        layers += [nn.Linear(one, next_one, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def flow_by_hand(matrices: list[np.ndarray]) -> list[np.ndarray]:
    """What goes through each entry of a product of matrices: from ones in front to ones behind."""
    before = [np.ones(matrices[0].shape[1])]
    for matrix in matrices[:-1]:
        before.append(matrix @ before[-1])
    after = [np.ones(matrices[-1].shape[0])]
    for matrix in reversed(matrices[1:]):
        after.append(matrix.T @ after[-1])
    return [m * np.outer(a, b) for m, a, b in zip(matrices, reversed(after), before, strict=True)]


def removed_by_hand(matrices: list[np.ndarray], sparsity: float, rounds: int) -> list[np.ndarray]:
    """The paper's algorithm with exact counts: which entries are kept after all rounds."""
    kept = [np.ones(m.shape, dtype=bool) for m in matrices]
    total = sum(m.size for m in matrices)
    for done in range(1, rounds + 1):
        count = round(total * (1 - (1 - sparsity) ** (done / rounds)))
        scores = flow_by_hand([m * k for m, k in zip(matrices, kept, strict=True)])
        flat = np.concatenate([np.where(k, s, -1.0).ravel() for s, k in zip(scores, kept, strict=True)])
        mask = np.ones(total, dtype=bool)
        mask[np.argsort(flat, kind="stable")[:count]] = False
        ends = np.cumsum([m.size for m in matrices])[:-1]
        kept = [part.reshape(m.shape) for part, m in zip(np.split(mask, ends), matrices, strict=True)]
    return kept


def magnitudes(model: nn.Module) -> list[np.ndarray]:
    return [p.detach().abs().double().numpy() for p in model.parameters()]


def test_synflow_of_one_round_is_the_flow_through_every_weight() -> None:
    model = mlp(3, 5, 4, 2)
    found = synflow(model, torch.randn(1, 3), sparsity=0.5, rounds=1)
    for score, expected in zip(found.values(), flow_by_hand(magnitudes(model)), strict=True):
        assert score.numpy() == pytest.approx(expected, rel=1e-12)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=3, max_size=5),
    sparsity=st.floats(0, 0.95),
    rounds=st.sampled_from([1, 2, 7, 100]),
    seed=st.integers(0, 99),
)
def test_lowest_scores_are_those_that_the_rounds_remove(
    sizes: list[int], sparsity: float, rounds: int, seed: int
) -> None:
    model = mlp(*sizes, seed=seed)
    found = synflow(model, torch.ones(1, sizes[0]), sparsity=sparsity, rounds=rounds)
    expected = removed_by_hand(magnitudes(model), sparsity, rounds)
    count = sum(int((~kept).sum()) for kept in expected)
    flat = np.concatenate([score.numpy().ravel() for score in found.values()])
    lowest = np.ones(flat.size, dtype=bool)
    lowest[np.argsort(flat, kind="stable")[:count]] = False
    assert lowest.tolist() == np.concatenate([kept.ravel() for kept in expected]).tolist()


def test_pruning_by_synflow_removes_what_the_rounds_remove() -> None:
    model = mlp(6, 20, 15, 3)
    expected = removed_by_hand(magnitudes(model), 0.9, 100)
    found = synflow(model, torch.ones(1, 6), sparsity=0.9)
    masks = prune_(model, sparsity=0.9, score=found, allocation=allocation.global_)
    for mask, kept in zip(masks.values(), expected, strict=True):
        assert mask.tolist() == kept.tolist()


def test_rounds_matter_where_one_pass_would_cut_the_network_in_two() -> None:
    model = mlp(8, 40, 40, 40, 4)
    few, many = (synflow(model, torch.ones(1, 8), sparsity=0.99, rounds=n) for n in (1, 100))
    assert not torch.equal(few["2.weight"], many["2.weight"])
    masks = prune_(model, sparsity=0.99, score=many, allocation=allocation.global_)
    path = torch.ones(8, dtype=torch.float64)
    for mask in masks.values():
        path = mask.double() @ path
    assert path.any()


def test_weights_that_go_in_earlier_rounds_score_lower() -> None:
    model = mlp(4, 6, 3)
    found = synflow(model, torch.ones(1, 4), sparsity=0.8, rounds=4)
    flat = torch.cat([score.flatten() for score in found.values()])
    expected = removed_by_hand(magnitudes(model), 0.8, 4)
    assert int((flat < 0).sum()) == round(42 * (1 - 0.2 ** (3 / 4)))
    for rounds_done, lowest_value in ((1, -4.0), (2, -3.0), (3, -2.0)):
        inside = (flat >= lowest_value) & (flat <= lowest_value + 1)
        goals = [round(42 * (1 - 0.2 ** (done / 4))) for done in (rounds_done - 1, rounds_done)]
        assert int(inside.sum()) == goals[1] - goals[0]
    assert all((score.numpy()[kept] > 0).all() for score, kept in zip(found.values(), expected, strict=True))


# ---- models that are not only matrices


class Everything(nn.Module):
    """Convolution, BatchNorm with statistics, dropout, biases, a double buffer in the forward, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout()
        self.head = nn.Linear(4, 3)
        with torch.no_grad():
            self.norm.running_mean.uniform_(5.0, 9.0)
            self.norm.running_var.uniform_(0.5, 2.0)
            self.norm.weight.uniform_(-1.0, 1.0)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Any]:
        x = torch.relu(self.norm(self.conv(x)))
        pooled = self.drop(x.mean((-1, -2))) * scale + torch.zeros(4)
        return {"logits": self.head(pooled), "more": (pooled, 3, None)}


def test_flow_through_any_model_is_that_of_its_absolute_weights_on_ones() -> None:
    model = Everything()
    inputs = {"x": torch.randn(1, 2, 5, 5), "scale": torch.tensor(2.0)}
    before = whole_state(model)
    found = synflow(model, inputs, sparsity=0.5, rounds=1)
    assert whole_state(model) == before
    w, b = (p.detach().abs().double() for p in model.conv.parameters())
    gain = model.norm.weight.detach().abs().double() / (model.norm.running_var.double() + model.norm.eps).sqrt()
    # every output of the convolution is the sum of the kernel; the mean over places leaves it
    pooled = gain * (w.sum((1, 2, 3)) + b) + model.norm.bias.detach().abs().double()
    head = model.head.weight.detach().abs().double()
    torch.testing.assert_close(found["head.weight"], head * pooled)
    torch.testing.assert_close(found["conv.weight"], w * (gain * (head.sum(0) + 1))[:, None, None, None])


def test_tokens_stay_and_a_function_picks_the_output() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(4, 3), nn.Linear(3, 2, bias=False)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            x = self.table(tokens)
            return self.head(x), x * 100

    model, tokens = Tokens(), torch.tensor([[2]])
    found = synflow(model, lambda m: m(tokens)[0], sparsity=0.5, rounds=1)
    table, head = model.table.weight.detach().abs().double(), model.head.weight.detach().abs().double()
    torch.testing.assert_close(found["head.weight"], head * table[2])
    torch.testing.assert_close(found["table.weight"][2], table[2] * head.sum(0))
    assert not found["table.weight"][:2].any()
    both = synflow(model, (tokens,), sparsity=0.5, rounds=1)
    torch.testing.assert_close(both["table.weight"][2], table[2] * (head.sum(0) + 100))


def test_flow_goes_through_recurrent_layers() -> None:
    model = nn.GRU(3, 4, num_layers=2, batch_first=True)
    found = synflow(model, torch.ones(1, 5, 3), sparsity=0.5, rounds=2)
    assert list(found) == ["weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"]
    assert all(score.isfinite().all() and score.any() for score in found.values())
    output, _ = model(torch.ones(1, 5, 3))
    output.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_flow_through_130_wide_layers_does_not_overflow() -> None:
    model = mlp(4, *[64] * 130, 2)
    found = synflow(model, torch.ones(1, 4), sparsity=0.9, rounds=2)
    assert all(score.isfinite().all() for score in found.values())
    assert max(float(score.max()) for score in found.values()) > torch.finfo(torch.float32).max


def test_flow_that_overflows_is_refused_by_name() -> None:
    model = mlp(2, 2, 2)
    with torch.no_grad():
        model.double()[0].weight.fill_(1e300)
        model[2].weight.fill_(1e300)
    before = whole_state(model)
    with pytest.raises(InvalidInputError, match=r"the flow through '0\.weight' is not finite(.|\n)*4 of 4"):
        synflow(model, torch.ones(1, 2), sparsity=0.5)
    assert whole_state(model) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 1.0}, r"sparsity must be a number in \[0, 1\)"),
        ({"sparsity": -0.1}, r"sparsity must be a number in \[0, 1\)"),
        ({"sparsity": float("nan")}, r"sparsity must be a number in \[0, 1\)"),
        ({"sparsity": "half"}, r"sparsity must be a number in \[0, 1\)"),
        ({"sparsity": 0.5, "rounds": 0}, "rounds must be a positive integer"),
        ({"sparsity": 0.5, "rounds": 2.0}, r"rounds must be a positive integer(.|\n)*2\.0"),
    ],
)
def test_numbers_that_describe_no_rounds_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        synflow(mlp(2, 2, 2), torch.ones(1, 2), **arguments)


def test_output_without_weights_and_complex_weights_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no output of the model depends on the weights(.|\n)*Tensor"):
        synflow(mlp(2, 2, 2), lambda m: torch.ones(2), sparsity=0.5)
    with pytest.raises(InvalidInputError, match=r"no output of the model depends on the weights(.|\n)*int"):
        synflow(mlp(2, 2, 2), lambda m: 3, sparsity=0.5)
    with pytest.raises(UnsupportedError, match=r"'weight' by synaptic flow(.|\n)*complex64"):
        synflow(nn.Linear(2, 2, dtype=torch.complex64), torch.ones(1, 2), sparsity=0.5)
