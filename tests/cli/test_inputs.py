"""Example inputs made up from their shapes."""

from __future__ import annotations

import argparse

import pytest
import torch
from torch import Tensor, nn

from secateur import InvalidInputError
from secateur.cli.inputs import InputShape, input_shape, made_inputs

MODEL = nn.ModuleDict({"tokens": nn.Embedding(30, 4), "places": nn.Embedding(7, 4), "fc": nn.Linear(4, 2)})


def made(*texts: str, model: nn.Module = MODEL, seed: int = 0) -> dict[str, Tensor] | tuple[Tensor, ...]:
    """The inputs of some strings."""
    found = made_inputs(model, [input_shape(text) for text in texts], seed=seed)
    assert isinstance(found, dict | tuple)
    return found


def test_forms_are_read() -> None:
    assert input_shape("1x3x224x224") == InputShape("", "float", (1, 3, 224, 224))
    assert input_shape("ids:1x128") == InputShape("", "ids", (1, 128))
    assert input_shape("attention_mask=ones:1x128") == InputShape("attention_mask", "ones", (1, 128))
    assert input_shape("x=5") == InputShape("x", "float", (5,))


@pytest.mark.parametrize("text", ["", "3x", "x3", "1 x 3", "words:1x3", "=1x3", "1x-3", "a b=1"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no input; write 1x3x224x224"):
        input_shape(text)


def test_unnamed_inputs_are_arguments_in_their_order() -> None:
    numbers, ones = made("2x3", "ones:4")
    assert (numbers.shape, numbers.dtype) == ((2, 3), torch.float32)
    assert torch.equal(ones, torch.ones(4, dtype=torch.int64))


def test_named_inputs_are_keyword_arguments() -> None:
    found = made("input_ids=ids:2x500", "mask=ones:2x500")
    assert isinstance(found, dict)
    assert list(found) == ["input_ids", "mask"]
    assert found["input_ids"].dtype == torch.int64
    assert sorted(found["input_ids"].unique().tolist()) == list(range(7))  # the smallest table has so many rows


def test_numbers_have_the_dtype_of_the_model() -> None:
    (numbers,) = made("2x3", model=nn.Linear(3, 2).bfloat16())
    assert numbers.dtype == torch.bfloat16


def test_seed_decides_on_the_values() -> None:
    assert torch.equal(made("20", seed=1)[0], made("20", seed=1)[0])
    assert not torch.equal(made("20", seed=1)[0], made("20", seed=2)[0])


@pytest.mark.parametrize("texts", [("a=1", "2"), ("a=1", "a=2")])
def test_names_are_for_all_or_none(texts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="either all inputs have names of their own or none"):
        made(*texts)
