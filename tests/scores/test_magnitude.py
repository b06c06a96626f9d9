from __future__ import annotations

import pytest
import torch

from secateur.scores import magnitude


def test_magnitude_is_the_absolute_value() -> None:
    scores = magnitude({"a": torch.tensor([[-2.0, 0.5], [-0.0, 3.0]]), "b.weight": torch.tensor([-7.0])})
    assert {name: score.tolist() for name, score in scores.items()} == {
        "a": [[2.0, 0.5], [0.0, 3.0]],
        "b.weight": [7.0],
    }


def test_magnitude_of_complex_weights_is_the_modulus() -> None:
    score = magnitude({"a": torch.tensor([3 - 4j, 0.6 + 0.8j], dtype=torch.complex128)})["a"]
    assert score.dtype == torch.float64
    torch.testing.assert_close(score, torch.tensor([5.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_magnitude_keeps_the_dtype_of_floats(dtype: torch.dtype) -> None:
    assert magnitude({"a": torch.tensor([-1.5], dtype=dtype)})["a"].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int64])
def test_magnitude_of_other_numbers_is_float32(dtype: torch.dtype) -> None:
    score = magnitude({"a": torch.tensor([-128.0, 2.0]).to(dtype)})["a"]
    assert score.dtype == torch.float32
    assert score.tolist() == [128.0, 2.0]
