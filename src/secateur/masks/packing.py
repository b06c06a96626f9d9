"""Masks as bits and as words, and zeroing by bitwise AND.

A mask is kept in one of three forms. *bool*: one byte an entry, for people. *bits*: one bit an entry, the first entry
in the lowest bit of the first byte (as numpy's ``bitorder="little"``), padded with zeros to a multiple of 8 bytes; for
checkpoints, the lean mode, and kernels. *words*: an integer as wide as a weight, all ones where it is kept, in the
memory order of the weight; for use in every step where there are no kernels.

Masked entries are cleared by AND on the integers that the floats are made of, not by a product: inf and nan times 0
are nan, and -1 times 0 is -0.0, whereas AND gives 0.0 always, and costs the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur._native.masking import kernels_for

__all__ = [
    "check_bits",
    "check_overlap",
    "clear_",
    "clear_packed_",
    "count_kept",
    "num_bytes",
    "pack",
    "unpack",
    "word_dtype",
    "words",
    "words_for",
]

_ALIGNMENT = 64
"""Entries to which bits are padded: 8 bytes."""

_GATHER_BITS = 0x0102040810204080
"""Times eight bytes of 0 or 1, this moves byte i to bit i of the top byte: every other product lands elsewhere."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_DEFAULT_CHUNK = 1 << 19
"""Weights that `clear_packed_` takes at a time: a smaller number costs more calls, a larger one more memory."""


def num_bytes(num_entries: int) -> int:
    """Bytes that the bits of a mask take: one bit an entry, padded to a multiple of 8 bytes.

    Example:
        >>> num_bytes(64), num_bytes(65)
        (8, 16)
    """
    return -(-num_entries // _ALIGNMENT) * (_ALIGNMENT // 8)


def pack(mask: Tensor) -> Tensor:
    """Pack a mask into bits, in row-major order.

    Args:
        mask: Bool, any shape; True = kept.

    Returns:
        uint8 ``(num_bytes(mask.numel()),)`` on the same device; padding bits are 0.

    Raises:
        InvalidInputError: `mask` is not bool.

    Example:
        >>> pack(torch.tensor([[True, False], [True, True]]))
        tensor([13,  0,  0,  0,  0,  0,  0,  0], dtype=torch.uint8)
    """
    _check_bool(mask)
    padded = torch.zeros(8 * num_bytes(mask.numel()), dtype=torch.bool, device=mask.device)
    padded[: mask.numel()].view(mask.shape).copy_(mask)
    return padded.view(torch.int64).mul(_GATHER_BITS).bitwise_right_shift_(56).to(torch.uint8)


def unpack(bits: Tensor, shape: torch.Size) -> Tensor:
    """Undo `pack`.

    Args:
        bits: uint8, as `pack` gives it.
        shape: Shape of the mask.

    Returns:
        Contiguous bool mask of this shape, on the same device, with memory of its own.

    Raises:
        ShapeError: `bits` are not those of a mask of this many entries.
    """
    num_entries = torch.Size(shape).numel()
    check_bits(bits, num_entries)
    padded = _bytes_of(bits).view(torch.bool)
    entries = padded if len(padded) == num_entries else padded[:num_entries].clone()
    return entries.view(shape)


def count_kept(bits: Tensor) -> int:
    """Count the ones: in pairs of bits, then in fours, in bytes, in words of 64.

    Args:
        bits: uint8, as `pack` gives it.

    Example:
        >>> count_kept(pack(torch.tensor([True, False, True])))
        2
    """
    kernels = kernels_for(bits)
    if kernels is not None:
        return kernels.count_bits(bits.contiguous())
    counts = bits.view(torch.int64)
    counts = counts - ((counts >> 1) & 0x5555555555555555)
    counts = (counts & 0x3333333333333333) + ((counts >> 2) & 0x3333333333333333)
    counts = (counts + (counts >> 4)) & 0x0F0F0F0F0F0F0F0F
    return int(((counts * 0x0101010101010101) >> 56).sum())


def word_dtype(dtype: torch.dtype) -> torch.dtype:
    """Integer dtype of the words that mask tensors of a dtype: signed, and as wide.

    complex128 has no integer of its width and is masked as pairs of int64.

    Example:
        >>> word_dtype(torch.float32), word_dtype(torch.bfloat16)
        (torch.int32, torch.int16)
    """
    return _WORDS.get(dtype.itemsize, torch.int64)


def words(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into words for tensors of a dtype.

    Args:
        mask: Bool, any shape; True = kept.
        dtype: Dtype of the tensors to be masked.

    Returns:
        ``word_dtype(dtype)`` of the same shape and memory order, -1 (all ones) where kept and 0 elsewhere; for
        complex128 with a last dim of 2 appended.

    Raises:
        InvalidInputError: `mask` is not bool.

    Example:
        >>> words(torch.tensor([True, False]), torch.float32)
        tensor([-1,  0], dtype=torch.int32)
    """
    _check_bool(mask)
    made = mask.to(word_dtype(dtype)).neg_()
    return torch.stack((made, made), dim=-1) if dtype == torch.complex128 else made


def words_for(tensor: Tensor, mask: Tensor) -> Tensor:
    """Turn a mask into the words of one tensor, in the tensor's own memory order (channels_last stays fast).

    Args:
        tensor: The tensor to be masked; only its dtype, device, shape and strides are used.
        mask: Bool of the same shape, on any device; True = kept.

    Returns:
        What `clear_` takes for this tensor.

    Raises:
        ShapeError: The shapes differ.
        InvalidInputError: `mask` is not bool.
    """
    _check_bool(mask)
    if mask.shape != tensor.shape:
        raise ShapeError(
            "a mask has another shape than its tensor.", tensor=tuple(tensor.shape), mask=tuple(mask.shape)
        )
    return words(torch.empty_like(tensor, dtype=torch.bool, requires_grad=False).copy_(mask), tensor.dtype)


def clear_(tensor: Tensor, words: Tensor) -> Tensor:
    """Set the masked entries to 0.0 in place, whatever they hold: inf, nan and -0.0 too.

    Kept entries keep every bit. Autograd does not record it, but the version counter is raised, as by any change in
    place.

    Args:
        tensor: Any dtype and strides, as long as no two entries share memory; may be a leaf that requires grad.
        words: As `words_for` gives them for this tensor.

    Returns:
        `tensor`.

    Raises:
        ShapeError: Words and tensor differ in shape or width.
        UnsupportedError: Entries of `tensor` share memory, as after ``expand``.

    Changes:
        The masked entries of `tensor`.
    """
    view = _word_view(tensor)
    if words.shape != view.shape or words.dtype != view.dtype:
        raise ShapeError(
            "the words of a mask do not fit the tensor.",
            tensor=f"{tensor.dtype} {tuple(tensor.shape)}",
            words=f"{words.dtype} {tuple(words.shape)}",
            fix="words_for(tensor, mask) makes them",
        )
    view.bitwise_and_(words)
    return tensor


def clear_packed_(tensor: Tensor, bits: Tensor, *, chunk: int = _DEFAULT_CHUNK) -> Tensor:
    """Do what `clear_` does, bit for bit, from packed bits: slower, with no more than a little memory for a while.

    Args:
        tensor: As for `clear_`.
        bits: uint8 on the same device, as `pack` gives it for a mask of this shape.
        chunk: Entries that are unpacked at a time; they take a byte, then a word each.

    Returns:
        `tensor`.

    Raises:
        ShapeError: `bits` are not those of a mask of this many entries.
        InvalidInputError: `chunk` is less than 1.
        UnsupportedError: Entries of `tensor` share memory, as after ``expand``.

    Changes:
        The masked entries of `tensor`.
    """
    view = _word_view(tensor)
    check_bits(bits, tensor.numel())
    if chunk < 1:
        raise InvalidInputError("chunk must be at least one entry.", chunk=chunk)
    pairs = view.dim() - tensor.dim()
    for start, part in _parts(view.flatten(0, tensor.dim() - 1) if view.is_contiguous() else view, chunk, pairs):
        part.bitwise_and_(_signs(bits, start, part.shape[: part.dim() - pairs], pairs))
    return tensor


def _parts(view: Tensor, chunk: int, pairs: int, start: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Cut a tensor along its first dims into parts of about `chunk` entries, each with the position of its first."""
    num_entries = view.numel() >> pairs
    if num_entries <= chunk:
        yield start, view
        return
    inner = num_entries // view.shape[0]
    step = max(1, chunk // inner)
    for i in range(0, view.shape[0], step):
        yield from _parts(view[i] if inner > chunk else view[i : i + step], chunk, pairs, start + i * inner)


def _signs(bits: Tensor, start: int, shape: torch.Size, pairs: int) -> Tensor:
    """Unpack entries from `start` on as int8, 0 or -1: AND with a wider integer repeats the sign, so -1 is all ones."""
    end = start + shape.numel()
    signs = _bytes_of(bits[start // 8 : -(-end // 8)], one=-1).view(torch.int8)
    signs = signs[start % 8 : start % 8 + shape.numel()].view(shape)
    return signs.unsqueeze(-1) if pairs else signs


def _bytes_of(bits: Tensor, *, one: int = 1) -> Tensor:
    """Turn each byte of 8 bits into an int64 of 8 bytes, in which a set bit is the byte `one` (1 or -1)."""
    return _byte_table(bits.device, one).index_select(0, bits.to(torch.int32))


@functools.cache
def _byte_table(device: torch.device, one: int) -> Tensor:
    """The 256 answers of `_bytes_of`."""
    return (_bit_table() * one).to(torch.int8).view(torch.int64).squeeze(1).to(device)


def _bit_table() -> Tensor:
    """Bits of the numbers below 256, the lowest first: int64 ``(256, 8)``."""
    return (torch.arange(256, device="cpu")[:, None] >> torch.arange(8, device="cpu")) & 1


def _word_view(tensor: Tensor) -> Tensor:
    """The integers that a tensor is made of, sharing its memory and version counter; complex128 as pairs."""
    if not tensor.is_contiguous():
        check_overlap(tensor)
    detached = tensor.detach()
    if tensor.dtype == torch.complex128:
        detached = torch.view_as_real(detached)
    return detached.view(word_dtype(tensor.dtype))


def check_overlap(tensor: Tensor) -> None:
    """Refuse strides under which two entries may share memory.

    Raises:
        UnsupportedError: They are such.
    """
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise UnsupportedError(
                "cannot mask a tensor in place when its entries may share memory, as after expand().",
                shape=tuple(tensor.shape),
                strides=tensor.stride(),
                fix="tensor.contiguous() has memory of its own",
            )
        reach += (size - 1) * stride


def _check_bool(mask: Tensor) -> None:
    """Refuse a mask that is not bool."""
    if mask.dtype != torch.bool:
        raise InvalidInputError(
            "a mask must be bool, True = kept.", dtype=mask.dtype, fix="mask != 0 makes one of numbers"
        )


def check_bits(bits: Tensor, num_entries: int) -> None:
    """Refuse bits that are not those of a mask of this many entries."""
    if bits.dtype != torch.uint8 or bits.shape != (num_bytes(num_entries),):
        raise ShapeError(
            "packed bits do not fit the mask.",
            bits=f"{bits.dtype} {tuple(bits.shape)}",
            wanted=f"torch.uint8 {(num_bytes(num_entries),)} for {num_entries} entries",
        )
