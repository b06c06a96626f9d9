"""Tensors and a JSON text in one safetensors file, whatever the dtype; and other parts beside them, in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from secateur._errors import UnsupportedError
from secateur._files import written_file
from secateur.checkpoints.headers import LONGEST
from secateur.shrink.texts import from_text, to_text

__all__ = ["Part", "in_header", "names_in", "tensor_in", "write_file"]

_COMPLEX, _TENSORS = "complex", "tensors"
_ENTRY = 150  # bytes that a header has for a tensor beside its name, at most


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

    Complex numbers go there as pairs, which any version can hold. The file's tensors are those of `tensors` alone; what
    other parts have goes into the header as text.

    Args:
        path: Where to.
        key: Where the JSON text is in the file's own header.
        header: What goes into it.
        tensors: The tensors; no two of them share memory.
        parts: What else the file holds, by keys of their own.

    Raises:
        UnsupportedError: The header would be longer than programs read.
    """
    paired = sorted(name for name, tensor in tensors.items() if tensor.is_complex())
    texts = {name: in_header(part) for name, part in (parts or {}).items()}
    texts[key] = json.dumps({**header, _COMPLEX: paired})
    _refuse_long(texts, tensors)
    with written_file(path) as beside:
        safetensors.torch.save_file({name: _plain(tensor) for name, tensor in tensors.items()}, beside, texts)


def in_header(part: Part) -> str:
    """The text of a part that is in the header with its tensors."""
    held = {name: to_text(tensor) for name, tensor in part.tensors.items()}
    return json.dumps({**part.header, _TENSORS: held})


def names_in(file: Any, header: Mapping[str, Any]) -> list[str]:
    """The names of the tensors that belong to a JSON text: of the open file, or in the text itself."""
    return list(header[_TENSORS] if _TENSORS in header else file.keys())


def tensor_in(file: Any, header: Mapping[str, Any], name: str) -> Tensor:
    """A tensor of an open file, or in the JSON text itself, as it was when `write_file` wrote it.

    Raises:
        InvalidInputError: It is in the text and cannot be decoded.
    """
    if _TENSORS in header:
        return from_text(f"{name!r} in the header of the file", header[_TENSORS][name])
    tensor: Tensor = file.get_tensor(name)
    return torch.view_as_complex(tensor) if name in header[_COMPLEX] else tensor


def _refuse_long(texts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a header that is longer than programs read."""
    size = len(json.dumps(texts)) + sum(len(json.dumps(name)) + _ENTRY for name in tensors)
    if size > LONGEST:
        largest = max(texts, key=lambda name: len(texts[name]))
        raise UnsupportedError(
            f"what is beside the weights is more than the header of a safetensors file can hold: {largest} above all.",
            bytes=f"{size:,}",
            limit=f"{LONGEST:,}",
            fix="secateur.save(model, path, masks=False), without a plan; masks.state_dict() and plan.save are for "
            "files of their own",
        )


def _plain(tensor: Tensor) -> Tensor:
    """A tensor as files hold it."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.contiguous()
