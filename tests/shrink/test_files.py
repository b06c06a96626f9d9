"""Tensors of every dtype come back from a file as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secateur._files import opened
from secateur.shrink.files import tensor_in, write_file

TENSORS = {
    "real": torch.randn(3, 4),
    "half": torch.randn(3, 4).bfloat16(),
    "flags": torch.tensor([True, False]),
    "single complex": torch.randn(3, 4, dtype=torch.cfloat),
    "double complex": torch.randn(3, 4, dtype=torch.cdouble),
    "conjugated": torch.randn(3, 4, dtype=torch.cdouble).conj(),
    "strided": torch.randn(4, 3).T,
    "scalar": torch.tensor(1.5 - 2j),
    "empty": torch.empty(0, 3),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_with_dtype_shape_and_values(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    write_file(tmp_path / "file", "key", {"format": "kind", "more": [1]}, {"it": tensor, "other": torch.ones(2)})
    with opened(tmp_path / "file", "key", "kind") as (file, header):
        found = tensor_in(file, header, "it")
        assert torch.equal(tensor_in(file, header, "other"), torch.ones(2))
    assert header["more"] == [1]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)
