"""Trials differ from the model in what may differ, and in nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError, UnsupportedError
from secateur.shrink.trials import Steady, agree, trials


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 2))


def test_the_first_trial_is_the_model_and_the_others_keep_its_zeros_only() -> None:
    torch.manual_seed(0)
    model = small()
    with torch.no_grad():
        model[0].weight[2] = 0.0
    found = trials(model, torch.randn(3, 4), ("eval",), [])
    assert torch.equal(found[0].model[0].weight.float(), model[0].weight)
    for trial in found[1:]:
        weight = trial.model[0].weight
        assert torch.equal(weight == 0, model[0].weight == 0)
        kept = weight != 0
        assert not bool((weight[kept].float() == model[0].weight[kept]).any())
        assert weight.dtype == torch.float64


def test_runs_differ_in_inputs_and_modes_agree_without_dropout() -> None:
    torch.manual_seed(0)
    trial = trials(small(), torch.randn(3, 4), ("eval", "train"), [])[0]
    count = len(trial.outputs) // 2
    assert all(map(agree, trial.outputs[:count], trial.outputs[count:]))
    assert all(not agree(one, other) for one, other in zip(trial.outputs, trial.outputs[1:], strict=False))
    assert trial.agrees(trial.model)


def test_a_trial_ends_with_the_first_run_that_differs_and_leaves_modes_as_they_were() -> None:
    class Counts(nn.Module):
        def __init__(self, wrong: int) -> None:
            super().__init__()
            self.inner, self.wrong = small(), wrong

        def forward(self, x: Tensor) -> Tensor:
            runs.append(self.wrong)
            return self.inner(x) + (runs.count(self.wrong) == self.wrong)

    runs: list[int] = []  # a trial puts back what a model remembers
    torch.manual_seed(0)
    right = Counts(0).double()
    trial = trials(right, torch.randn(3, 4), ("eval",), [])[0]
    for wrong, count in ((1, 1), (2, 2), (0, len(trial.outputs))):
        del runs[:]
        other = Counts(wrong).double()
        other.inner.load_state_dict(right.inner.state_dict())
        other.train()
        assert trial.agrees(other) == (wrong == 0)
        assert len(runs) == count
        assert all(module.training for module in other.modules())


def test_agree_sees_shapes_small_differences_and_numbers_that_are_none() -> None:
    one = [torch.ones(2, dtype=torch.float64)]
    assert agree(one, [one[0] + 1e-13])
    assert not agree(one, [one[0] + 1e-9])
    assert not agree(one, [torch.ones(3, dtype=torch.float64)])
    assert not agree(one, [one[0] * float("nan")])


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.Dropout2d(0.3), nn.Dropout(0.5, inplace=True)])
def test_steady_makes_dropout_change_nothing(layer: nn.Module) -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    with Steady() as steady:
        found = layer(x.clone())
    torch.testing.assert_close(found, x, rtol=1e-15, atol=0)
    assert steady.met
    with Steady() as steady:
        layer.eval()(x)
    assert not steady.met
    layer.train()
    with Steady(active=False) as steady:
        assert bool((layer(x.clone()) == 0).any())


def test_inputs_of_any_form_are_varied() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(7, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor, *, keep: Tensor) -> Tensor:
            return self.fc(self.embedding(ids)) * keep.unsqueeze(-1)

    torch.manual_seed(0)
    ids, keep = torch.tensor([[0, 1, 2, 3, 6]]), torch.tensor([[True, False, True, True, True]])
    for inputs in ({"ids": ids, "keep": keep}, lambda m: m(ids, keep=keep)):
        first, second, third = trials(Named(), inputs, ("eval",), [])[0].outputs
        assert not agree(first, second)
        assert not agree(second, third)
    assert ids.tolist() == [[0, 1, 2, 3, 6]]


def test_inputs_that_are_all_alike_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="entries of the example inputs are all alike"):
        trials(nn.Embedding(3, 2), torch.zeros(4, dtype=torch.long), ("eval",), [])


def test_a_model_that_does_not_run_in_double_precision_is_refused() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.float())

    with pytest.raises(UnsupportedError, match="running a copy in double precision, and that failed"):
        trials(Single(), torch.randn(2, 4), ("eval",), [])


@pytest.mark.parametrize("modes", [(), ("evaluation",), "eval"])
def test_modes_that_are_none_are_refused(modes: Any) -> None:
    with pytest.raises(InvalidInputError, match="modes are 'eval', 'train' or both"):
        trials(small(), torch.randn(2, 4), modes, [])
