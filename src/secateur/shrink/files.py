"""Tensors and a JSON text in one safetensors file, whatever the dtype."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

__all__ = ["tensor_in", "write_file"]

_COMPLEX = "complex"


def write_file(path: str | PathLike[str], key: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file that `secateur._files.opened` reads; complex numbers go there as pairs, which any version can hold.

    Args:
        path: Where to.
        key: Where the JSON text is in the file's own header.
        header: What goes into it.
        tensors: The tensors; no two of them share memory.
    """
    paired = sorted(name for name, tensor in tensors.items() if tensor.is_complex())
    plain = {name: torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for name, t in tensors.items()}
    contiguous = {name: tensor.contiguous() for name, tensor in plain.items()}
    safetensors.torch.save_file(contiguous, path, {key: json.dumps({**header, _COMPLEX: paired})})


def tensor_in(file: Any, header: Mapping[str, Any], name: str) -> Tensor:
    """A tensor of an open file, as it was when `write_file` wrote it."""
    tensor: Tensor = file.get_tensor(name)
    return torch.view_as_complex(tensor) if name in header[_COMPLEX] else tensor
