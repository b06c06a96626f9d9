"""What the tensors of a file are like: sparsity, patterns of their zeros, dead channels, copies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from secateur._files import headers_in, parsed
from secateur._progress import task
from secateur.checkpoints.opening import open_checkpoint
from secateur.checkpoints.pickled import Loaded, is_pickled, tensors_in
from secateur.checkpoints.stored import Stored
from secateur.checkpoints.zeros import ROW_MULTIPLE, Zeros, nonzero

__all__ = ["Inspection", "TensorReport", "inspect"]


@dataclass(frozen=True)
class TensorReport:
    """One tensor.

    Args:
        name: Its name.
        dtype: Its dtype, in the words of safetensors.
        shape: Its shape.
        bytes: Bytes that it takes.
        zeros: Entries that are zero; None if its dtype is none that can be looked at.
        patterns: Which patterns the zeros follow: ``"2:4"``, of every four neighbours along dim 1 two or fewer are
            not zero; ``"16x1"``, all zeros are in blocks of zeros of 16 positions along dim 0 and one along dim 1.
        dead_outputs: Positions of dim 0 with zeros only, of a tensor of two or more dims.
        dead_inputs: The same along dim 1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    zeros: int | None = None
    patterns: tuple[str, ...] = ()
    dead_outputs: int = 0
    dead_inputs: int = 0

    @property
    def entries(self) -> int:
        """Number of entries."""
        return torch.Size(self.shape).numel()

    @property
    def sparsity(self) -> float | None:
        """Fraction of entries that are zero; None if it is not known."""
        return None if self.zeros is None else self.zeros / max(1, self.entries)

    def to_dict(self) -> dict[str, Any]:
        """All as plain values, for JSON."""
        return asdict(self) | {"sparsity": self.sparsity}


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`.

    Args:
        tensors: One each, in the order of the files.
        tied: Names of tensors of equal content, which are one tensor stored several times, or share their memory; and
            names that the metadata has for a tensor, as ``safetensors.torch.save_model`` writes them.
        metadata: What the file says of itself.
        parts: What else `secateur.save` has put into the header (``"masks"``, ``"plan"``, ``"buffers"``), or ``secateur
            apply`` (``"applied plan 1"``) -> bytes that it takes.
    """

    tensors: tuple[TensorReport, ...]
    tied: tuple[tuple[str, ...], ...]
    metadata: dict[str, str]
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        """Entries of all tensors whose zeros are known."""
        return sum(tensor.entries for tensor in self.tensors if tensor.zeros is not None)

    @property
    def zeros(self) -> int:
        """Zeros in all of them."""
        return sum(tensor.zeros or 0 for tensor in self.tensors)

    @property
    def sparsity(self) -> float:
        """Fraction of all entries that are zero."""
        return self.zeros / max(1, self.entries)


def inspect(path: str | PathLike[str]) -> Inspection:
    """Look at the tensors of a file, a few rows of one at a time.

    Args:
        path: A safetensors file, an index or a folder of several, or a file of ``torch.save`` with tensors in it.

    Returns:
        What was found.

    Raises:
        InvalidInputError: There is no such file, it is none of these, or it holds objects that would be unpickled.
    """
    place = Path(path)
    tensors: Sequence[Stored | Loaded]
    metadata: dict[str, str] = {}
    if place.is_file() and is_pickled(place):
        tensors = tensors_in(place)
    else:
        checkpoint = open_checkpoint(place)
        tensors = list(checkpoint)
        metadata = {key: text for shard in checkpoint.shards for key, text in shard.metadata.items()}
    reports, contents = [], dict[object, list[str]]()
    with task("inspecting", sum(tensor.num_bytes for tensor in tensors), in_bytes=True) as bar:
        for tensor in tensors:
            report, content = _looked_at(tensor)
            reports.append(report)
            if content is not None:
                contents.setdefault(content, []).append(tensor.name)
            bar.advance(tensor.num_bytes)
    twins = [*contents.values(), *_recorded({report.name for report in reports}, metadata)]
    parts = {key: len(metadata[key].encode()) for key, text in headers_in(metadata).items() if "tensors" in text}
    return Inspection(tuple(reports), tuple(_united(twins)), metadata, parts)


def _recorded(names: Set[str], metadata: Mapping[str, str]) -> Iterator[list[str]]:
    """Tensors with other names of theirs that only the metadata has: of safetensors' ``save_model``, and of ours."""
    aliases = dict(metadata)
    for text in metadata.values():
        aliases.update(parsed(text).get("aliases", {}))
    for name, twin in aliases.items():
        if twin in names and name not in names:
            yield [twin, name]


def _united(several: Iterable[list[str]]) -> Iterator[tuple[str, ...]]:
    """Lists that have a name in common as one; those of one name are left out."""
    found: dict[str, list[str]] = {}
    for names in several:
        known = next((found[name] for name in names if name in found), [])
        known += [name for name in names if name not in known]
        found.update(dict.fromkeys(names, known))
    yield from (tuple(names) for names in {id(each): each for each in found.values()}.values() if len(names) > 1)


def _looked_at(tensor: Stored | Loaded) -> tuple[TensorReport, object]:
    """The report of a tensor, and what tensors of equal content have in common; None if that would say nothing."""
    plain = TensorReport(tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes)
    if not tensor.has_entries:
        return plain, None
    zeros, digest, constant = Zeros(tensor.shape), hashlib.blake2b(digest_size=16), Constant()
    for first, rows in tensor.rows(multiple=ROW_MULTIPLE):
        zeros.add(first, nonzero(rows))
        entries = rows.contiguous().flatten().view(torch.uint8)
        constant.add(entries.view(-1, rows.itemsize))
        digest.update(entries.numpy().data)
    report = TensorReport(
        *(plain.name, plain.dtype, plain.shape, plain.bytes, zeros.count, zeros.patterns),
        dead_outputs=len(zeros.rows) - int(zeros.rows.sum()),
        dead_inputs=len(zeros.columns) - int(zeros.columns.sum()),
    )
    return report, (tensor.dtype, tensor.shape, digest.digest()) if not constant.is_so else None


class Constant:
    """Whether all entries that were seen are the same one, as those of new biases and norms are."""

    def __init__(self) -> None:
        self.is_so = True
        self._entry: Tensor | None = None

    def add(self, entries: Tensor) -> None:
        """Look at some entries, uint8 (entries, bytes of each)."""
        if self._entry is None:
            self._entry = entries[0].clone()
        self.is_so = self.is_so and bool((entries == self._entry).all())
