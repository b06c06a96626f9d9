"""Every way of saying which positions stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur import InvalidInputError, ShapeError
from secateur.surgery.positions import positions


@st.composite
def kept_of(draw: st.DrawFn) -> tuple[list[int], int]:
    """Some ascending positions, at least one, and the size of the dim."""
    size = draw(st.integers(1, 30))
    kept = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return sorted(kept), size


FORMS = {
    "list": lambda kept, size: kept,
    "tuple": lambda kept, size: tuple(kept),
    "tensor": lambda kept, size: torch.tensor(kept),
    "int32 tensor": lambda kept, size: torch.tensor(kept, dtype=torch.int32),
    "array": lambda kept, size: np.array(kept),
    "uint8 array": lambda kept, size: np.array(kept, dtype=np.uint8),
    "numpy ints": lambda kept, size: [np.int64(i) for i in kept],
    "bool tensor": lambda kept, size: torch.tensor([i in kept for i in range(size)]),
    "bool array": lambda kept, size: np.array([i in kept for i in range(size)]),
    "bool list": lambda kept, size: [i in kept for i in range(size)],
}


@pytest.mark.parametrize("form", FORMS)
@given(kept_of())
def test_every_form_means_the_same_positions(form: str, case: tuple[list[int], int]) -> None:
    kept, size = case
    found = positions(FORMS[form](kept, size), size)
    assert found.dtype == torch.int64
    assert found.tolist() == kept


@given(st.integers(1, 30), st.slices(30))
def test_slice_means_what_it_means_in_python(size: int, piece: slice) -> None:
    expected = list(range(size)[piece])
    if expected and expected == sorted(expected):
        assert positions(piece, size).tolist() == expected
    else:
        with pytest.raises(InvalidInputError, match="`keep` is"):
            positions(piece, size)


@pytest.mark.parametrize(
    ("keep", "error", "message"),
    [
        ([0, 5], ShapeError, "outside the dim"),
        ([-1, 2], ShapeError, "outside the dim"),
        ([3, 1], InvalidInputError, "not strictly ascending"),
        ([1, 1, 2], InvalidInputError, "not strictly ascending"),
        ([], InvalidInputError, "is empty"),
        (range(0), InvalidInputError, "is empty"),
        (slice(4, 4), InvalidInputError, "is empty"),
        (torch.zeros(5, dtype=torch.bool), InvalidInputError, "is empty"),
        (torch.ones(4, dtype=torch.bool), ShapeError, "mask of another length"),
        ([[0, 1]], ShapeError, "not 1-D"),
        (torch.tensor(2), ShapeError, "not 1-D"),
        ([0.0, 1.0], InvalidInputError, "holds no integers"),
        (torch.tensor([0 + 1j]), InvalidInputError, "holds no integers"),
        (3, InvalidInputError, "not a sequence of integers"),
        (None, InvalidInputError, "not a sequence of integers"),
        ("abc", InvalidInputError, "not a sequence of integers"),
        ({0, 1}, InvalidInputError, "not a sequence of integers"),
        ((i for i in range(2)), InvalidInputError, "not a sequence of integers"),
        (slice("a", None), InvalidInputError, "not a sequence of integers"),
        (torch.ones(2, device="meta"), InvalidInputError, "not a sequence of integers"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_other_input_is_refused(keep: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        positions(keep, 5)


def test_error_names_the_range_and_what_was_given() -> None:
    with pytest.raises(ShapeError) as caught:
        positions(range(60, 65), 64)
    assert "size: 64    keep: 5 indices, min 60, max 64" in str(caught.value)
    assert "fix:   `keep` lists kept positions in [0, 64)" in str(caught.value)


def test_what_was_given_is_not_aliased() -> None:
    keep = torch.tensor([0, 1, 2])
    found = positions(keep, 5)
    keep[2] = 4
    assert found.tolist() == [0, 1, 2]


def test_positions_are_on_the_cpu_whatever_the_default_device() -> None:
    with torch.device("meta"):
        assert positions([0, 2], 3).tolist() == [0, 2]
