from __future__ import annotations

import pytest
import torch

from secateur._errors import InvalidInputError, ShapeError
from secateur.patterns import Unstructured


def test_unstructured_units_are_entries_in_row_major_order() -> None:
    score = torch.arange(6.0).view(2, 3)
    assert Unstructured().unit_size(score.shape) == 1
    assert Unstructured().reduce(score.t()).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    mask = Unstructured().expand(torch.tensor([True, False, False, True, True, False]), torch.Size([3, 2]))
    assert mask.tolist() == [[True, False], [False, True], [True, False]]


def test_unstructured_takes_a_scalar() -> None:
    assert Unstructured().reduce(torch.tensor(3.0)).tolist() == [3.0]
    assert Unstructured().expand(torch.tensor([False]), torch.Size([])).tolist() is False


def test_unstructured_refuses_units_of_another_tensor() -> None:
    with pytest.raises(ShapeError, match=r"one for each unit.*\n  kept: \(5,\)    units: 6    shape: \(2, 3\)"):
        Unstructured().expand(torch.ones(5, dtype=torch.bool), torch.Size([2, 3]))
    with pytest.raises(ShapeError, match=r"kept: \(2, 3\)    units: 6"):
        Unstructured().expand(torch.ones(2, 3, dtype=torch.bool), torch.Size([2, 3]))
    with pytest.raises(InvalidInputError, match=r"must be bool, True = kept\.\n  dtype: torch\.uint8"):
        Unstructured().expand(torch.ones(6, dtype=torch.uint8), torch.Size([2, 3]))
