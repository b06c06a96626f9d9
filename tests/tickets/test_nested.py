"""Nested values: copies own their memory, and files give back what was written."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur import UnsupportedError
from secateur.tickets.nested import from_json, owned, to_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TENSORS = st.lists(st.floats(width=32), max_size=3).map(torch.tensor) | st.integers(0, 255).map(torch.tensor)
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(PLAIN, inner, max_size=3)
        | st.dictionaries(st.integers(), st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are alike, kinds and bits of tensors included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for member in members for tensor in tensors_in(member)]


@given(VALUES)
def test_what_is_written_comes_back_through_a_json_text(value: Any) -> None:
    tensors: dict[str, Tensor] = {}
    text = json.dumps(to_json(value, "it", tensors))
    assert same(from_json(json.loads(text), tensors), value)


def test_tensors_under_keys_that_look_alike_stay_apart() -> None:
    value = {1: torch.zeros(2), "1": torch.ones(2), None: torch.tensor(3.0), "None": torch.tensor(4.0)}
    tensors: dict[str, Tensor] = {}
    described = to_json(value, "it", tensors)
    assert len(tensors) == 4
    assert same(from_json(described, tensors), value)


@given(VALUES)
def test_owned_copy_is_alike_and_shares_no_memory(value: Any) -> None:
    copied = owned(value)
    assert same(copied, value)
    mine = {tensor.data_ptr() for tensor in tensors_in(value) if tensor.numel()}
    assert not mine & {tensor.data_ptr() for tensor in tensors_in(copied)}


def test_owned_copy_of_a_parameter_is_a_plain_tensor_without_graph() -> None:
    copied = owned({"w": nn.Parameter(torch.ones(2))})["w"]
    assert type(copied) is Tensor
    assert not copied.requires_grad


@pytest.mark.parametrize(
    "value", [{1, 2}, {"f": len}, [object()], {("a", "b"): 1}], ids=["set", "function", "object", "key"]
)
def test_value_without_a_place_in_a_file_is_refused_by_name(value: object) -> None:
    with pytest.raises(UnsupportedError, match=r"cannot save 'schedulers"):
        to_json(value, "schedulers", {})
