from __future__ import annotations

from typing import Any

import pytest
import torch

from secateur._errors import InfeasibleError, InvalidInputError
from secateur.allocation import PerTensor, Units

NAMES = {"stem.weight": 100, "body.0.weight": 40, "body.0.bias": 20, "body.1.weight": 40, "head.weight": 10}


def units() -> dict[str, Units]:
    return {name: Units(torch.rand(n), torch.Size([n])) for name, n in NAMES.items()}


@pytest.mark.parametrize(
    ("sparsities", "otherwise", "removed"),
    [
        ({}, 0.5, [50, 20, 10, 20, 5]),
        ({"stem.weight": 0.9}, 0.5, [90, 20, 10, 20, 5]),
        ({"body.*.weight": 0.25, "head.weight": 0}, 0.5, [50, 10, 10, 10, 0]),
        ({"body": 0.25, "stem": 0.1, "head": 0.9}, None, [10, 10, 5, 10, 9]),
        ({"body.0": 0.25, "*.1.*": 0.1}, 0, [0, 10, 5, 4, 0]),
        ({"*": 0.5, "stem.weight": 0.9}, None, [90, 20, 10, 20, 5]),
        ({"*.weight": 0.5, "body": 0.5}, 0.1, [50, 20, 10, 20, 5]),
    ],
    ids=str,
)
def test_per_tensor_gives_each_its_sparsity_and_all_others_that_of_the_call(
    sparsities: dict[str, float], otherwise: float | None, removed: list[int]
) -> None:
    assert list(PerTensor(sparsities)(units(), otherwise).values()) == removed


def test_per_tensor_refuses_keys_that_mean_nothing() -> None:
    with pytest.raises(
        InvalidInputError, match=r"'body\.7', 'heads' in the dictionary[\s\S]*pruned: stem\.weight, body"
    ):
        PerTensor({"body.7": 0.5, "stem.*": 0.5, "heads": 0.1})(units(), 0.5)


def test_per_tensor_refuses_globs_that_contradict_each_other() -> None:
    with pytest.raises(
        InvalidInputError, match=r"'body\.0\.weight' several[\s\S]*'body\.0\.\*': 0\.2[\s\S]*'body\.0\.weight': …"
    ):
        PerTensor({"*.weight": 0.5, "body.0.*": 0.2})(units(), 0.5)


def test_per_tensor_refuses_to_guess_a_sparsity() -> None:
    with pytest.raises(
        InvalidInputError, match=r"no sparsity for 'stem\.weight'\.\n  it has: 'body'\n  fix:   sparsity="
    ):
        PerTensor({"body": 0.5})(units(), None)


@pytest.mark.parametrize("sparsity", [1.0, -0.5, "0.5", None])
def test_per_tensor_refuses_a_sparsity_that_is_none_by_its_key(sparsity: float) -> None:
    with pytest.raises(InvalidInputError, match=r"'body': sparsity must be a number in \[0, 1\)"):
        PerTensor({"body": sparsity})


@pytest.mark.parametrize("sparsities", [0.5, [("body", 0.5)], {3: 0.5}, {("body",): 0.5}, None], ids=str)
def test_per_tensor_refuses_what_is_no_dict_by_name(sparsities: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"a dict by name or glob\.\n  found: "):
        PerTensor(sparsities)


def test_per_tensor_refuses_to_empty_a_tensor() -> None:
    with pytest.raises(
        InfeasibleError, match=r"the dictionary of sparsities would remove every unit of 'head\.weight'"
    ):
        PerTensor({"head": 0.96})(units(), 0.5)


def test_per_tensor_of_nothing_is_nothing() -> None:
    assert PerTensor({"body": 0.5})({}, 0.5) == {}
