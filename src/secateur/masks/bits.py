"""One mask in the forms in which it is applied: packed bits always, words of a tensor's width where they are needed.

Kernels apply the bits as they are, wherever there is a library that can reach the memory of a tensor; the bits lie in
the order of that memory then. On other devices, on strides with gaps, and without the library, words make torch as fast
as it can be; a lean mask does without them, and is slow there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import torch
from torch import Tensor

from secateur._native.masking import Kernels, kernels_for
from secateur.masks.ordering import memory_order, pack_in, row_major, unpack_from
from secateur.masks.packing import check_bits, clear_, clear_packed_, count_kept, num_bytes, words_for

__all__ = ["Bits", "clear_all_"]

_PIECE = 1 << 17


class Bits:
    """A mask, packed to one bit an entry, that clears tensors of its shape.

    Args:
        packed: uint8 as `packing.pack` gives it.
        shape: Shape of the mask.
        lean: Make no words: 0.125 bytes an entry instead of that and the width of a weight. Slower where there are no
            kernels; where there are, masks have no words in any case.

    Raises:
        ShapeError: `packed` is not that of a mask of this many entries.
    """

    def __init__(self, packed: Tensor, shape: torch.Size, *, lean: bool = False) -> None:
        self.shape = torch.Size(shape)
        self.lean = lean
        check_bits(packed, self.shape.numel())
        self._order = self._rows = row_major(self.shape)
        self._bits = packed.contiguous()
        self._words: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, like: Tensor, *, lean: bool = False) -> Self:
        """Take a bool mask (True = kept) to the device of `like`, the tensor that it is for, in the form for it."""
        on_meta = like.is_meta  # which has no memory; the bits wait elsewhere
        rows = row_major(mask.shape)
        made = cls(pack_in(rows, mask if on_meta else mask.to(like.device)), mask.shape, lean=lean)
        fits = not on_meta and like.shape == made.shape
        if fits and made._reach(like, keep=True) is None and not lean:
            made._words = words_for(like, mask)
        return made

    def copy(self, *, lean: bool | None = None) -> Bits:
        """The same mask with memory of its own; words are made when they are needed."""
        return Bits(self.packed.clone(), self.shape, lean=self.lean if lean is None else lean)

    @property
    def packed(self) -> Tensor:
        """The bits as `packing.pack` gives them; the mask's own memory where that is how they are kept."""
        return self._bits if self._order == self._rows else pack_in(self._rows, self.dense)

    @property
    def device(self) -> torch.device:
        """Where the bits are."""
        return self._bits.device

    @property
    def dense(self) -> Tensor:
        """The mask as bool, True = kept: a new tensor."""
        return unpack_from(self._order, self._bits, self.shape)

    @property
    def num_zeros(self) -> int:
        """Number of masked entries."""
        return self.shape.numel() - count_kept(self._bits)

    @property
    def num_bytes(self) -> int:
        """Bytes that are held at the moment."""
        return self._bits.nbytes + (0 if self._words is None else self._words.nbytes)

    def clear_(self, tensor: Tensor, *, own: bool = False) -> None:
        """Zero the masked entries of a tensor of the mask's shape, whatever they hold; nothing happens on meta.

        Args:
            tensor: A parameter, its gradient (a sparse one, too) or a moment.
            own: It is the tensor that the mask is for. Bits and words are kept as it needs them, and serve every other
                tensor of its layout as well.
        """
        reached = self._reach(tensor, keep=own)
        if reached is not None:
            kernels, bits = reached
            kernels.clear_([(tensor, bits)])
        elif tensor.layout == torch.sparse_coo:
            self._clear_sparse_(tensor)
        elif not tensor.is_meta:
            self._clear_with_torch_(tensor, own=own)

    def _clear_with_torch_(self, tensor: Tensor, *, own: bool) -> None:
        """The same without kernels."""
        if self.lean or tensor.numel() == 0:
            clear_packed_(tensor, self._packed_on(tensor.device, keep=own))
        elif self._words is not None and self._words.shape == tensor.shape and _fit(self._words, tensor):
            tensor.detach().view(self._words.dtype).bitwise_and_(self._words)  # what clear_ does, in fewer calls
        else:
            clear_(tensor, self._words_for(tensor, keep=own))

    def fill_(self, tensor: Tensor, number: complex) -> None:
        """Give the masked entries of a tensor of the mask's shape a number, whatever they hold."""
        reached = None if tensor.is_complex() else self._reach(tensor, keep=False)
        if reached is not None:
            kernels, bits = reached
            kernels.fill_(tensor, bits, number.real)
        else:
            self._fill_with_torch_(tensor, number)

    def _fill_with_torch_(self, tensor: Tensor, number: complex) -> None:
        """The same without kernels."""
        words = self._words
        if self.lean or words is None or tensor.is_complex() or not tensor.is_contiguous() or not _fit(words, tensor):
            tensor.masked_fill_(~self.dense.to(tensor.device), number)
            return
        one = int(torch.tensor(number, dtype=tensor.dtype).view(words.dtype))
        for entries, kept in zip(_pieces(tensor.detach().view(words.dtype)), _pieces(words), strict=True):
            entries.bitwise_and_(kept).bitwise_or_((~kept).bitwise_and_(one))

    def clear_kept_(self, tensor: Tensor) -> None:
        """Zero the kept entries of a tensor of the mask's shape, for once, whatever they hold."""
        if not tensor.is_meta:
            tensor.masked_fill_(self.dense.to(tensor.device), 0)

    def is_flat(self, tensor: Tensor) -> bool:
        """Whether `is_clear` can look at windows of the tensor that the mask is for, or of its gradient."""
        if tensor.layout != torch.strided:
            return False
        if tensor.is_contiguous():
            return True
        if kernels_for(tensor) is not None:
            return memory_order(tensor) is not None
        plain = not self.lean and tensor.dim() == 4 and tensor.dtype != torch.complex128
        return plain and tensor.is_contiguous(memory_format=torch.channels_last)

    def is_clear(self, start: int, stop: int, *tensors: Tensor) -> bool:
        """Whether the masked ones among some entries of tensors are zero.

        Args:
            start: First entry, in the order of memory; a multiple of 64.
            stop: End of the entries; a multiple of 64, or beyond the last.
            *tensors: Tensors of one layout, each `is_flat`: the one that the mask is for, its gradient.
        """
        reached = self._reach(tensors[0], keep=False)
        if reached is not None and all(self._reach(tensor, keep=False) is not None for tensor in tensors[1:]):
            kernels, packed = reached
            return kernels.is_clear(tensors, packed, start, stop)
        stop = min(stop, tensors[0].numel())
        if self.lean:
            return all(self._is_clear_packed(_window(tensor, start, stop), start, stop) for tensor in tensors)
        words = self._words_for(tensors[0], keep=False)
        wide = words.dim() - tensors[0].dim() + 1  # words that an entry has
        words = words.as_strided((wide * (stop - start),), (1,), wide * start)
        found = [_window(tensor, start, stop).view(words.dtype) for tensor in tensors]
        bits = found[0] if len(found) == 1 else found[0] | found[1]  # runs before every step: as few calls as can be
        return torch.equal(bits & words, bits)

    def _is_clear_packed(self, entries: Tensor, start: int, stop: int) -> bool:
        """The same for one tensor's entries, without words."""
        packed = self._packed_on(entries.device, keep=False)[start // 8 :][: num_bytes(stop - start)]
        return _same_bits(clear_packed_(entries.clone(), packed), entries)

    def _reach(self, tensor: Tensor, *, keep: bool) -> tuple[Kernels, Tensor] | None:
        """If kernels can be used on a tensor: they, and the bits in the order of its memory, which may stay so."""
        kernels = kernels_for(tensor)
        if kernels is None or tensor.shape != self.shape:
            return None
        order = self._rows if tensor.is_contiguous() else memory_order(tensor)
        if order is None:
            return None
        bits = self._bits
        if order != self._order or not bits.is_cpu:
            bits = pack_in(order, self.dense.cpu())
        if type(bits) is not Tensor:  # a fake one, made while a graph was captured
            return None
        if keep:
            self._bits, self._order, self._words = bits, order, None
        return kernels, bits

    def _words_for(self, tensor: Tensor, *, keep: bool) -> Tensor:
        """The words for the tensor's width, device and memory order; those that are kept, if they fit."""
        words = self._words
        if words is None or not _fit(words, tensor):
            words = words_for(tensor, self.dense)
            if keep:
                self._words = words
        return words

    def _packed_on(self, device: torch.device, *, keep: bool) -> Tensor:
        """The bits on a device; they stay there if they are to be kept."""
        packed = self.packed.to(device)
        if keep:
            self._bits, self._order = packed, self._rows
        return packed

    def _clear_sparse_(self, tensor: Tensor) -> None:
        """Zero the masked entries of a sparse COO tensor (the gradient of a sparse embedding) in place."""
        merged = tensor.coalesce()
        index, values = merged.indices(), merged.values()
        kept = self.dense.to(values.device)[tuple(index)]
        values = torch.where(kept, values, torch.zeros((), dtype=values.dtype, device=values.device))
        tensor.copy_(torch.sparse_coo_tensor(index, values, merged.shape, check_invariants=False))


def clear_all_(pairs: Iterable[tuple[Bits, Tensor]]) -> None:
    """Zero the masked entries of tensors, each the one that its mask is for; kernels take all in one call."""
    reached, kernels = [], None
    for mask, tensor in pairs:
        found = mask._reach(tensor, keep=True)
        if found is None:
            mask.clear_(tensor, own=True)
        else:
            kernels, bits = found
            reached.append((tensor, bits))
    if kernels is not None:
        kernels.clear_(reached)


def _pieces(tensor: Tensor) -> Iterable[Tensor]:
    """Stretches of a tensor without gaps that stay in a CPU's caches together with what is made of them."""
    flat = tensor.view(-1)
    return flat.split(_PIECE) if flat.device.type == "cpu" else [flat]


def _window(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some entries of a tensor without gaps, in the order of memory."""
    return tensor.detach().as_strided((stop - start,), (1,), tensor.storage_offset() + start)


def _fit(words: Tensor, tensor: Tensor) -> bool:
    """Whether words that were made for some tensor serve this one of the same shape."""
    pairs = tensor.dtype == torch.complex128
    strides = tuple(2 * stride for stride in tensor.stride()) if pairs else tensor.stride()
    return (
        words.stride()[: tensor.dim()] == strides
        and words.element_size() == (8 if pairs else tensor.element_size())
        and words.device == tensor.device
    )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two 1-D tensors hold the same bits (nan equals itself, 0.0 is not -0.0)."""
    word = torch.int64 if one.numel() * one.element_size() % 8 == 0 else torch.uint8  # bytes are compared one by one
    return torch.equal(one.view(word), other.view(word))
