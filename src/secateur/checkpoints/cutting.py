"""Cut a checkpoint to smaller shapes, a few rows of one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike

import torch
from torch import Tensor

from secateur._errors import ShapeError
from secateur._files import written_file, written_folder
from secateur._progress import task
from secateur.checkpoints.headers import num_bytes
from secateur.checkpoints.opening import Checkpoint, Shard
from secateur.checkpoints.stored import Stored
from secateur.checkpoints.writing import Written, write_pieces

__all__ = ["Cut", "cut_checkpoint"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Cut:
    """What happens to one tensor.

    Args:
        keep: Dim -> the positions that stay, ascending.
        added: What is added to it before, of its shape.
    """

    keep: Mapping[int, Tensor]
    added: Tensor | None = None

    def shape(self, stored: Stored) -> tuple[int, ...]:
        """The shape afterwards.

        Raises:
            ShapeError: The tensor has no such positions, or what is added has another shape.
        """
        dims = list(stored.shape)
        for dim, keep in self.keep.items():
            if not 0 <= dim < len(dims) or not len(keep) or int(keep[-1]) >= dims[dim]:
                raise ShapeError(f"{stored.name!r} has no positions to keep along dim {dim}.", shape=stored.shape)
            dims[dim] = len(keep)
        if self.added is not None and tuple(self.added.shape) != stored.shape:
            raise ShapeError(
                f"what is added to {stored.name!r} has another shape.",
                tensor=stored.shape,
                added=tuple(self.added.shape),
            )
        return tuple(dims)

    def pieces(self, stored: Stored) -> Iterator[Tensor]:
        """The tensor's entries afterwards, in order."""
        lead = stored.lead
        by_row = self.keep.get(lead)
        others = {dim - lead: keep for dim, keep in self.keep.items() if dim > lead}
        for first, rows in stored.rows(lead):
            last = first + len(rows)
            piece = rows if self.added is None else rows + _rows_of(self.added, lead)[first:last].to(rows.dtype)
            piece = piece.view(_WORDS[piece.itemsize])
            if by_row is not None:
                low, high = torch.searchsorted(by_row, torch.tensor([first, last])).tolist()
                piece = piece.index_select(0, by_row[low:high] - first)
            for dim, keep in others.items():
                piece = _selected(piece, dim, keep)
            yield piece


def cut_checkpoint(
    checkpoint: Checkpoint,
    cuts: Mapping[str, Cut],
    path: str | PathLike[str],
    *,
    force: bool = False,
    told: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint with smaller tensors.

    Never more than a part of one tensor is in memory: pieces of at most 1 MiB, or one row where rows are longer.

    Args:
        checkpoint: What is read; it stays as it is.
        cuts: What happens to which tensors; others are copied as they are.
        path: The file to write; for a checkpoint with an index a folder, in which files have the same names.
        force: Whether what is there may be replaced.
        told: What the metadata of the first file gains.

    Raises:
        InvalidInputError: Something is there, or there is no folder to write to.
        ShapeError: A tensor is not there or does not fit its cut. Nothing is written then.
    """
    known = {tensor.name: tensor for tensor in checkpoint}
    for name, cut in cuts.items():
        if name not in known:
            raise ShapeError(f"there is no tensor {name!r} to cut in the checkpoint.")
        cut.shape(known[name])
    with ExitStack() as stack:
        if checkpoint.index is None:
            files = {checkpoint.shards[0].path: stack.enter_context(written_file(path, force=force))}
        else:
            folder = stack.enter_context(written_folder(path, force=force))
            files = {shard.path: folder / shard.path.name for shard in checkpoint.shards}
            (folder / checkpoint.index.name).write_text(_index(checkpoint, cuts), encoding="utf-8")
        bar = stack.enter_context(task("cutting", checkpoint.num_bytes, in_bytes=True))
        for number, shard in enumerate(checkpoint.shards):
            metadata = shard.metadata if number else {**shard.metadata, **(told or {})}
            write_pieces(files[shard.path], _written(shard, cuts, bar.advance), metadata)


def _written(shard: Shard, cuts: Mapping[str, Cut], advance: Callable[[int], object]) -> Iterator[Written]:
    """The tensors of a file afterwards."""
    for stored in shard.tensors:
        cut = cuts.get(stored.name)
        shape = stored.shape if cut is None else cut.shape(stored)
        pieces = stored.raw() if cut is None else cut.pieces(stored)
        yield Written(stored.name, stored.dtype, shape, _counted(pieces, partial(advance, stored.num_bytes)))


def _counted(pieces: Iterator[Tensor], done: Callable[[], object]) -> Iterator[Tensor]:
    """The same pieces; then a call."""
    yield from pieces
    done()


def _index(checkpoint: Checkpoint, cuts: Mapping[str, Cut]) -> str:
    """The text of the index afterwards, whose total sizes are smaller."""
    shapes = {t.name: cuts[t.name].shape(t) if t.name in cuts else t.shape for t in checkpoint}
    sizes = {"total_size": sum(num_bytes(tensor.dtype, shapes[tensor.name]) for tensor in checkpoint)}
    if "total_parameters" in checkpoint.listed.get("metadata", {}):
        sizes["total_parameters"] = sum(torch.Size(shape).numel() for shape in shapes.values())
    metadata = checkpoint.listed.get("metadata", {}) | sizes
    return json.dumps(checkpoint.listed | {"metadata": metadata}, indent=2) + "\n"


def _selected(tensor: Tensor, dim: int, keep: Tensor) -> Tensor:
    """Positions of a dim; single entries are gathered, which is several times faster than ``index_select`` on them."""
    before, after = tensor.shape[:dim], tensor.shape[dim + 1 :]
    if after.numel() > 1:
        return tensor.index_select(dim, keep)
    lines = tensor.reshape(before.numel(), tensor.shape[dim])
    return lines.gather(1, keep.expand(len(lines), -1)).view(*before, len(keep), *after)


def _rows_of(tensor: Tensor, lead: int) -> Tensor:
    """A tensor as its rows, see `Stored.rows`."""
    return tensor.reshape(tensor.shape[lead:]) if tensor.dim() else tensor.reshape(1)
