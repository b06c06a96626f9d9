"""Tensors and a JSON text in one safetensors file, whatever the dtype; and other parts beside them in the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from secateur._files import headers_in, written_file

__all__ = ["Part", "names_in", "tensor_in", "write_file"]

_COMPLEX, _PREFIX = "complex", "prefix"


@dataclass(frozen=True, eq=False)
class Part:
    """What goes into a file under one key of its header.

    Args:
        header: Its JSON text.
        tensors: Its tensors, no two of which share memory.
    """

    header: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def write_file(
    path: str | PathLike[str],
    key: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    parts: Mapping[str, Part] | None = None,
) -> None:
    """Write a file that `secateur._files.opened` reads; it is there in whole or not at all.

    Complex numbers go there as pairs, which any version can hold.

    Args:
        path: Where to.
        key: Where the JSON text is in the file's own header.
        header: What goes into it.
        tensors: The tensors; no two of them share memory.
        parts: What else the file holds, by keys of their own.
    """
    texts, written = {}, {}
    for name, part in {key: Part(header, tensors), **(parts or {})}.items():
        prefix = "" if name == key else f"{name}|"
        paired = sorted(name for name, tensor in part.tensors.items() if tensor.is_complex())
        texts[name] = json.dumps({**part.header, _COMPLEX: paired, **({_PREFIX: prefix} if prefix else {})})
        written.update({prefix + name: _plain(tensor) for name, tensor in part.tensors.items()})
    with written_file(path) as beside:
        safetensors.torch.save_file(written, beside, texts)


def names_in(file: Any, header: Mapping[str, Any]) -> list[str]:
    """The names of an open file's tensors that `write_file` wrote with this JSON text."""
    prefix = header.get(_PREFIX, "")
    others = [each[_PREFIX] for each in headers_in(file.metadata()).values() if each.get(_PREFIX, prefix) != prefix]
    found = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - not a dict
    return [name.removeprefix(prefix) for name in found if not name.startswith(tuple(others))]


def tensor_in(file: Any, header: Mapping[str, Any], name: str) -> Tensor:
    """A tensor of an open file, as it was when `write_file` wrote it."""
    tensor: Tensor = file.get_tensor(header.get(_PREFIX, "") + name)
    return torch.view_as_complex(tensor) if name in header[_COMPLEX] else tensor


def _plain(tensor: Tensor) -> Tensor:
    """A tensor as files hold it."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.contiguous()
