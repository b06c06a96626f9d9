"""Dotted names: who owns a tensor, which are tied, which a selector means."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from secateur import InvalidInputError
from secateur._names import chosen_names, computed_by, match, owner_of, tied_names


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({"emb": nn.Embedding(4, 3), "body": nn.Sequential(nn.Linear(3, 3)), "head": nn.Linear(3, 4)})
    model["head"].weight = model["emb"].weight
    return model


def test_owner_is_the_module_that_has_the_tensor() -> None:
    model = tied()
    assert owner_of(model, "body.0.weight") == (model["body"][0], "weight")
    assert owner_of(model["head"], "bias") == (model["head"], "bias")


def test_owner_of_a_missing_module_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no module 'body\.1' in ModuleDict") as caught:
        owner_of(tied(), "body.1.weight")
    assert "names are those of model.named_parameters()" in str(caught.value)


def test_tied_names_are_listed_under_the_first() -> None:
    assert tied_names(tied()) == {
        "emb.weight": ["emb.weight", "head.weight"],
        "body.0.weight": ["body.0.weight"],
        "body.0.bias": ["body.0.bias"],
        "head.bias": ["head.bias"],
    }


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ("*.bias", ["body.0.bias", "head.bias"]),
        (["body.*", "head.bias"], ["body.0.weight", "body.0.bias", "head.bias"]),
        (nn.Embedding, ["emb.weight"]),
        ([nn.Linear], ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]),
        (("head.weight", nn.Embedding), ["emb.weight", "head.weight"]),
        ("*", ["emb.weight", "body.0.weight", "body.0.bias", "head.weight", "head.bias"]),
        ([], []),
    ],
    ids=str,
)
def test_match_yields_what_at_least_one_selector_means(selectors: Any, expected: list[str]) -> None:
    assert list(match(tied(), selectors)) == expected


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("bdoy.*", "'bdoy.*' matches no parameter of ModuleDict"),
        (nn.Conv2d, "Conv2d matches no parameter of ModuleDict"),
        ("BODY.*", "'BODY.*' matches no parameter"),
        ([3], "chosen by globs over their names or by module types"),
    ],
)
def test_match_refuses_what_means_nothing(selector: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        list(match(tied(), selector))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("include", "names"),
    [
        (None, ["emb.weight", "body.0.weight"]),
        ("head.weight", ["emb.weight"]),
        (nn.Linear, ["emb.weight", "body.0.weight"]),
        (["body.*", "emb.weight"], ["emb.weight", "body.0.weight", "body.0.bias"]),
        ("head", ["emb.weight", "head.bias"]),
    ],
)
def test_chosen_names_are_first_names_in_the_models_order(include: Any, names: list[str]) -> None:
    assert chosen_names(tied(), include) == names


def test_computed_weights_and_their_parts_are_known() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert computed_by(model, "0.weight") == computed_by(model, "0.parametrizations.weight.original0") == "WeightNorm"
    assert computed_by(model, "0.bias") == computed_by(model, "1.weight") == ""
