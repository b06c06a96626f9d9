"""What selectors mean in `prune_`, and what is said about a score, an allocation or a pattern that is none."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from secateur import InvalidInputError, prune_
from tests.masks.oracles import bits


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)))


@pytest.mark.parametrize(
    ("include", "masked"),
    [
        (nn.Conv2d, ["0.weight"]),
        ([nn.Conv2d, nn.Linear], ["0.weight", "2.0.weight", "2.1.weight"]),
        ("2.0.*", ["2.0.weight", "2.0.bias"]),
        ("2.0", ["2.0.weight", "2.0.bias"]),
        ("*.bias", ["0.bias", "1.bias", "2.0.bias", "2.1.bias"]),
        (nn.BatchNorm2d, ["1.weight", "1.bias"]),
        (["2.0.weight", "2.0.bias"], ["2.0.weight", "2.0.bias"]),
    ],
)
def test_module_type_means_weights_and_glob_all_that_it_matches(include: Any, masked: list[str]) -> None:
    assert list(prune_(net(), sparsity=0.5, include=include)) == masked


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "l1"}, "score= is a function(.|\n)*scores.magnitude"),
        ({"allocation": "global"}, "allocation= is a function(.|\n)*allocation.global_"),
        ({"pattern": "2:4"}, "pattern= is a pattern object(.|\n)*Channel"),
        ({"score": lambda weights: 3}, "scores by name(.|\n)*returned: int"),
    ],
)
def test_choice_that_is_none_is_refused_with_those_there_are(arguments: dict[str, Any], message: str) -> None:
    model = net()
    before = [bits(p) for p in model.parameters()]
    with pytest.raises(InvalidInputError, match=message):
        prune_(model, sparsity=0.5, **arguments)
    assert [bits(p) for p in model.parameters()] == before
