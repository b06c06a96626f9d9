"""Tensors in the text of a header come back bit by bit, or are told to be damaged."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError
from secateur.shrink.texts import _DTYPES, from_text, to_text

SHAPES = st.lists(st.integers(0, 9), max_size=3)


@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=list(_DTYPES))
@given(SHAPES, st.integers(0, 99))
def test_a_tensor_of_any_shape_comes_back_bit_by_bit(dtype: torch.dtype, shape: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        tensor = torch.rand(shape, generator=generator) < 0.5
    else:  # any bits at all, nan among them
        size = torch.Size(shape).numel() * dtype.itemsize
        entries = torch.randint(256, (size,), dtype=torch.uint8, generator=generator)
        tensor = entries.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    found = from_text("it", json.loads(json.dumps(to_text(tensor))))
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert found.flatten().view(torch.uint8).tolist() == tensor.flatten().view(torch.uint8).tolist()


@pytest.mark.parametrize("entries", [0, 1, 63, 64, 65, 200])
def test_flags_take_one_bit_each_before_they_are_compressed(entries: int) -> None:
    flags = np.random.default_rng(0).random(entries) < 0.5
    *_, text = to_text(torch.from_numpy(flags))
    padded = np.concatenate([flags, np.zeros(-entries % 64, dtype=bool)])
    assert zlib.decompress(base64.b64decode(str(text))) == np.packbits(padded, bitorder="little").tobytes()


@pytest.mark.parametrize("view", [torch.Tensor.t, torch.conj, lambda tensor: tensor[:, ::2]])
def test_views_are_written_as_they_look(view: object) -> None:
    tensor = view(torch.randn(4, 6, dtype=torch.cfloat))  # type: ignore[operator]
    assert torch.equal(from_text("it", to_text(tensor)), tensor)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        ["float32", [2]],
        ["float31", [2], ""],
        ["float32", 2, ""],
        ["float32", ["2"], ""],
        ["float32", [2], "????"],
        ["float32", [2], 3],
        ["float32", [3], to_text(torch.zeros(2))[2]],
        ["float32", [1], to_text(torch.zeros(2))[2]],
        ["float32", [0], to_text(torch.zeros(2))[2]],
        ["float32", [-2], to_text(torch.zeros(2))[2]],
        ["bool", [1 << 62, 4], to_text(torch.zeros(2))[2]],
        ["int64", [2.0], to_text(torch.zeros(2, dtype=torch.int64))[2]],
    ],
    ids=repr,
)
def test_what_is_no_such_text_is_told(entry: object) -> None:
    with pytest.raises(InvalidInputError, match="it is damaged"):
        from_text("it", entry)


def test_no_more_is_decompressed_than_the_shape_needs() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(1 << 26))).decode()
    with pytest.raises(InvalidInputError, match="do not belong together"):
        from_text("it", ["float32", [2], bomb])
