"""One parameter's mask: kept as bits beside the parameter, applied to it, to its gradient, and following it.

The mask of a parameter is stored in the ``__dict__`` of the module that owns the parameter, so that a deep copy or a
pickle of the module (or of any part of it) carries it along; names of parameters and keys of state dicts do not change.
It reaches the parameter through a weak reference, and is found from the parameter by `mask_of`.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from secateur._errors import ShapeError
from secateur.masks import keeper, registry
from secateur.masks.packing import clear_, clear_packed_, count_kept, pack, unpack, words_for
from secateur.masks.registry import mask_of
from secateur.surgery import Change, Do, finder, holder

__all__ = ["Mask", "masks_in"]

_SLOT = "_secateur_masks"
"""Key in the ``__dict__`` of a module: {short parameter name: Mask}."""

_KEYS = itertools.count()

_SMALL = 1 << 16
"""Entries of a tensor that is masked in full after every step in any case: it costs a few microseconds."""


def masks_in(module: nn.Module) -> dict[str, Mask]:
    """The masks of the parameters that `module` itself owns, by short name; the dict itself, so that it can change."""
    found: dict[str, Mask] = vars(module).setdefault(_SLOT, {})
    return found


class Mask:
    """Which entries of one parameter are kept; see `secateur.masks.Masks` for those of a model.

    Args:
        parameter: The parameter. It is not changed yet; `apply_` zeroes the masked entries.
        mask: Bool of the parameter's shape, True = kept.
        lean: Keep bits only (0.125 bytes a weight) instead of bits and words of the parameter's width (4.125 for
            float32). Slower to apply.

    Attributes:
        key: A number that no other mask has, and that changes with the mask, so that what was derived from it is seen
            to be out of date.
        followers: Weak references to masks of copies that follow this one.
    """

    def __init__(self, parameter: nn.Parameter, mask: Tensor, *, lean: bool = False) -> None:
        self.lean = lean
        self.followers: list[weakref.ref[Mask]] = []
        self._shape = mask.shape
        self._bits = pack(mask.to(parameter.device))
        self.bind(parameter)

    def bind(self, parameter: nn.Parameter) -> None:
        """Belong to `parameter` from now on (a copy, or one that a loader has put in place of the old one)."""
        self._reference = weakref.ref(parameter)
        self.key = next(_KEYS)
        self._hook: Any = None
        self._words: Tensor | None = None
        self._seen: tuple[int, int] | None = None
        self._seen_grad: tuple[weakref.ref[Tensor], int] | None = None
        self._window = 0
        registry.enter(parameter, self)
        keeper.start()
        self._hook_gradient(parameter)

    def release(self) -> None:
        """Let go of the parameter; its zeros stay where they are."""
        if self._hook is not None:
            self._hook.remove()
        parameter = self._reference()
        if parameter is not None:
            registry.leave(parameter, self)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that is masked."""
        found = self._reference()
        if found is None:
            raise ReferenceError("the masked parameter no longer exists: it was replaced or its module deleted")
        return found

    @property
    def value(self) -> Tensor:
        """The mask as bool, True = kept: a new tensor of the parameter's shape, on its device."""
        return unpack(self._bits, self._shape)

    @property
    def bits(self) -> Tensor:
        """The mask as bits, uint8, row-major, the first entry in the lowest bit; not a copy."""
        return self._bits

    @property
    def shape(self) -> torch.Size:
        """Shape of the mask."""
        return self._shape

    @property
    def num_zeros(self) -> int:
        """Number of masked entries."""
        return self._shape.numel() - count_kept(self._bits)

    @property
    def num_bytes(self) -> int:
        """Bytes that this mask holds at the moment."""
        words = 0 if self._words is None else self._words.numel() * self._words.element_size()
        return self._bits.numel() + words

    def set(self, mask: Tensor) -> None:
        """Take another mask of the parameter's shape; followers take it too. Weights and state are left to others.

        Raises:
            ShapeError: The mask has another shape than the parameter.
        """
        if mask.shape != self.parameter.shape:
            raise ShapeError(
                "the mask has another shape than the parameter.",
                mask=tuple(mask.shape),
                parameter=tuple(self.parameter.shape),
            )
        self.reshape(mask)
        for follower in self.live_followers():
            follower.set(mask)

    def reshape(self, mask: Tensor) -> None:
        """Take a mask of whatever shape the parameter has, or is about to have."""
        self.key = next(_KEYS)
        self._shape = mask.shape
        self._bits = pack(mask.to(self.parameter.device))
        self._words = self._seen = self._seen_grad = None

    def live_followers(self) -> Iterator[Mask]:
        """Masks of copies (averages) that follow this one."""
        self.followers = [reference for reference in self.followers if reference() is not None]
        for reference in self.followers:
            follower = reference()
            if follower is not None:
                yield follower

    # ---- applying

    def clear_(self, tensor: Tensor) -> None:
        """Zero the masked entries of a tensor of the parameter's shape (itself, a moment), whatever they hold."""
        if tensor.layout == torch.sparse_coo:
            self._clear_sparse(tensor)
        elif self.lean or tensor.numel() == 0:
            clear_packed_(tensor, self._bits_on(tensor.device))
        elif self._fits(tensor):
            clear_(tensor, self._words_for(tensor))
        else:
            clear_(tensor, words_for(tensor, self.value))

    def apply_(self) -> None:
        """Zero the masked weights, and their gradients if there are any."""
        parameter = self.parameter
        self.clear_(parameter)
        self._seen = _evidence(parameter)
        self.clear_grad_()

    def clear_grad_(self) -> None:
        """Zero the gradients of masked weights."""
        gradient = self.parameter.grad
        if gradient is not None:
            self.clear_(gradient)
            self._seen_grad = weakref.ref(gradient), gradient._version

    def grad_is_clean(self) -> bool:
        """Whether the gradient is the one that was masked last, unchanged since (or there is none)."""
        gradient = self.parameter.grad
        if gradient is None:
            return True
        return (
            self._seen_grad is not None and self._seen_grad[0]() is gradient and self._seen_grad[1] == gradient._version
        )

    def prepare_step(self) -> None:
        """Before an optimizer's step: what has been changed since it was masked is masked again."""
        parameter = self.parameter
        if not self.grad_is_clean():
            self.clear_grad_()
        if self._seen != _evidence(parameter):
            self.clear_(parameter)
        if self._hook is None:
            self._hook_gradient(parameter)

    def finish_step(self, *, sound: bool) -> None:
        """After an optimizer's step: masked weights are zero.

        Args:
            sound: The step is known to keep a weight of 0 with a gradient of 0 at 0, and nothing has interfered. Then
                a large tensor is not masked again but a window of it is looked at, a different one each time; it shows
                what autograd's version counters do not: writes through ``.data``.
        """
        parameter = self.parameter
        if not (sound and self._window_is_clean(parameter)):
            self.clear_(parameter)
        self._seen = _evidence(parameter)

    def _window_is_clean(self, parameter: Tensor) -> bool:
        """Whether the next window of a large CPU tensor has only zeros at masked places."""
        if parameter.numel() <= _SMALL or parameter.device.type != "cpu" or not parameter.is_contiguous():
            return False
        start = self._window if self._window < parameter.numel() else 0
        self._window = start + _SMALL
        weights = parameter.detach().flatten()[start : start + _SMALL]
        if self.lean or not self._fits(parameter):
            masked = weights.clone()
            clear_packed_(masked, self._bits[start // 8 : (start + _SMALL) // 8])
        else:
            words = self._words_for(parameter).flatten(0, parameter.dim() - 1)
            masked = clear_(weights.clone(), words[start : start + _SMALL])
        return _same_bits(masked, weights)

    def _fits(self, tensor: Tensor) -> bool:
        """Whether the words made for the parameter serve this tensor as well."""
        parameter = self.parameter
        return (
            tensor.dtype == parameter.dtype
            and tensor.device == parameter.device
            and tensor.stride() == parameter.stride()
        )

    def _words_for(self, tensor: Tensor) -> Tensor:
        """The words, made again when dtype, device or memory order have changed."""
        words = self._words
        stale = words is None or words.device != tensor.device or words.element_size() != _width(tensor)
        if stale or words is None or words.stride()[: tensor.dim()] != _word_strides(tensor):
            words = self._words = words_for(tensor, self.value)
        return words

    def _bits_on(self, device: torch.device) -> Tensor:
        """The bits on a device; they move there for good, since the parameter has."""
        if self._bits.device != device and self.parameter.device == device:
            self._bits = self._bits.to(device)
        return self._bits.to(device)

    def _clear_sparse(self, gradient: Tensor) -> None:
        """Zero masked entries of a sparse COO gradient (a sparse embedding's) in place."""
        dense = gradient.coalesce()
        index = dense.indices()
        kept = self.value.to(dense.device)[tuple(index)]
        values = torch.where(kept, dense.values(), torch.zeros((), dtype=dense.dtype, device=dense.device))
        gradient.copy_(torch.sparse_coo_tensor(index, values, dense.shape, check_invariants=False))

    def _hook_gradient(self, parameter: nn.Parameter) -> None:
        """Have gradients masked as they arrive, from the time on when the parameter wants any."""
        if parameter.requires_grad and parameter.is_leaf:
            self._hook = parameter.register_post_accumulate_grad_hook(_clear_gradient)

    # ---- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Mask:
        """A mask of the parameter's copy, with memory of its own."""
        twin = copy.deepcopy(self.parameter, memo)
        return Mask(twin, self.value, lean=self.lean)

    def __getstate__(self) -> dict[str, Any]:
        """For pickling together with the module that owns the parameter."""
        return {"parameter": self.parameter, "bits": self._bits, "shape": self._shape, "lean": self.lean}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the parameter that was loaded, hooks included."""
        self.lean, self._shape, self._bits = state["lean"], torch.Size(state["shape"]), state["bits"]
        self.followers = []
        self.bind(state["parameter"])


def _clear_gradient(parameter: Tensor) -> None:
    """The hook on every masked parameter: its gradient has just been accumulated."""
    mask = mask_of(parameter)
    if mask is not None:
        mask.clear_grad_()


def _evidence(tensor: Tensor) -> tuple[int, int]:
    """What changes when the tensor's data is replaced or written to in any way that autograd can see."""
    return tensor.data_ptr(), tensor._version


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two 1-D tensors hold the same bits (nan equals itself, 0.0 is not -0.0)."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _width(tensor: Tensor) -> int:
    """Bytes of the integer that masks one entry."""
    return 8 if tensor.dtype == torch.complex128 else tensor.element_size()


def _word_strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides of the words of a tensor, in its own dims."""
    factor = 2 if tensor.dtype == torch.complex128 else 1
    return tuple(factor * stride for stride in tensor.stride())


@finder
def _find(tensor: Tensor) -> Iterable[Mask]:
    """Surgery asks for what refers to a tensor: its mask."""
    mask = mask_of(tensor)
    return [] if mask is None else [mask]


@holder(Mask)
def _follow(mask: Mask, changes: Sequence[Change]) -> Iterator[Do]:
    """The mask is cut like the parameter; new positions are kept."""
    for change in changes:
        if change.tensor is mask.parameter:
            old, new = mask.value, change.take(mask.value, fill=1.0)
            yield Do(partial(mask.reshape, new), partial(mask.reshape, old))
