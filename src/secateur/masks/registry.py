"""From a parameter to its mask, without anything stored on the parameter itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from secateur.masks.mask import Mask

__all__ = ["at_first_mask", "at_lifting", "enter", "epoch", "hold", "leave", "lift", "mask_of", "touch"]

_MASKS = WeakTensorKeyDictionary()
_epoch = 0
_waiting: list[Callable[[], object]] = []
_lifting: list[Callable[[Mask], object]] = []


def at_first_mask(start: Callable[[], object]) -> Callable[[], object]:
    """Have `start` called once, when a process has its first mask: whoever masks nothing pays nothing."""
    _waiting.append(start)
    return start


def at_lifting(call: Callable[[Mask], object]) -> Callable[[Mask], object]:
    """Have `call` called with each mask that is about to be lifted, while it is in force still."""
    _lifting.append(call)
    return call


def lift(parameter: Tensor, mask: Mask) -> None:
    """A mask is about to be held no longer, if the parameter is masked by it."""
    if mask_of(parameter) is mask:
        for call in _lifting:
            call(mask)


def mask_of(parameter: Tensor) -> Mask | None:
    """The mask of a parameter, None if it has none."""
    found: weakref.ref[Mask] | Mask | None = _MASKS.get(parameter)
    return found() if isinstance(found, weakref.ref) else found


def enter(parameter: Tensor, mask: Mask) -> None:
    """From now on the parameter is masked by this mask, and by no other."""
    while _waiting:
        _waiting.pop()()
    _MASKS[parameter] = mask
    touch()


def hold(parameter: Tensor, mask: Mask, *, weakly: bool) -> None:
    """Keep the mask of a parameter alive with it; or leave that to the module that owns both.

    A mask whose listener knows the model leads back to its parameter, so keeping it would keep all of them forever.
    """
    if mask_of(parameter) is mask:
        _MASKS[parameter] = weakref.ref(mask) if weakly else mask


def leave(parameter: Tensor, mask: Mask) -> None:
    """From now on the parameter is not masked, if it was by this mask."""
    if mask_of(parameter) is mask:
        del _MASKS[parameter]
        touch()


def touch(_: object = None) -> None:
    """Have `epoch` change: a mask has come or gone, or a masked parameter no longer exists."""
    global _epoch
    if _epoch is not None:  # the interpreter has ended, and masked parameters go last
        _epoch += 1


def epoch() -> int:
    """A number that changes with every `touch`, so that what is derived from the masks can be kept until then."""
    return _epoch
