from __future__ import annotations

import pytest
import torch

from secateur.scores import SCORES, Score

every_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


def weights() -> dict[str, torch.Tensor]:
    return {
        "fc.weight": torch.nn.Parameter(torch.randn(3, 4)),
        "conv.weight": torch.randn(2, 3, 1, 2).to(torch.bfloat16),
        "scale": torch.tensor(2.0, dtype=torch.float64),
        "empty": torch.empty(0, 5),
    }


@every_score
def test_score_has_the_names_and_shapes_of_the_weights(score: Score) -> None:
    given = weights()
    scores = score(given)
    assert {name: s.shape for name, s in scores.items()} == {name: w.shape for name, w in given.items()}
    for s in scores.values():
        assert s.is_floating_point()
        assert not s.isnan().any()
        assert not s.requires_grad


@every_score
def test_score_leaves_weights_and_the_random_state_alone(score: Score) -> None:
    given = weights()
    before = {name: (w.detach().clone(), w._version) for name, w in given.items()}
    state = torch.get_rng_state()
    score(given)
    assert torch.equal(torch.get_rng_state(), state)
    for name, (value, version) in before.items():
        assert torch.equal(given[name], value)
        assert given[name]._version == version


@every_score
def test_score_rates_each_tensor_by_itself(score: Score) -> None:
    given = weights()
    together = score(given)
    for name, w in given.items():
        assert torch.equal(score({name: w})[name], together[name])
