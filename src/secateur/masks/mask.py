"""One parameter's mask: applied to the parameter and its gradient, and going where the parameter goes.

It reaches the parameter through a weak reference and is found from it by `registry.mask_of`; where it is stored is the
subject of `secateur.masks.slots`.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur._errors import ShapeError, UnsupportedError
from secateur.masks import registry
from secateur.masks.arrival import hook_gradient
from secateur.masks.bits import Bits, clear_all_
from secateur.masks.capture import Capture
from secateur.masks.listening import Listener
from secateur.surgery import Change, Do, finder, holder

__all__ = ["Mask", "clear_weights_"]

_KEYS = itertools.count()

_SMALL = 1 << 16
"""Entries of a tensor that is masked in full after every step in any case: it costs a few microseconds."""

_WINDOW = 1 << 13
"""Entries of a larger tensor that are looked at before each step."""


class Mask:
    """Which entries of one parameter are kept, in force from the moment it is made; see `secateur.Masks` for a model's.

    Args:
        parameter: The parameter. It is not changed yet; `apply_` zeroes the masked entries.
        bits: The mask itself, of the parameter's shape.

    Attributes:
        key: A number that no other mask has, and that changes with the mask, so that what was derived from it is seen
            to be out of date.
        salvage: The weights as they were loaded, if that put values at masked places; kept until training goes on, for
            the case that the masks which belong to them are loaded after them.
        is_active: Whether it is in force; False once it has been released.
        is_enforced: Whether it is held around every step; False while a listener does so in its own way.
        listener: Who is called around the steps of whichever optimizer holds the parameter; None if nobody is.
        capture: Takes in the dense gradient as it arrives, while there is one; None at most times.
        reader: The optimizer that wants gradients left as they arrive, since it looks at kept entries only; None if
            there is no such, as at most times. It ends when another optimizer steps.
    """

    def __init__(self, parameter: nn.Parameter, bits: Bits) -> None:
        self.bits = bits
        self._followers: list[weakref.ref[Mask]] = []
        self._leader: weakref.ref[Mask] | None = None
        self._bind(parameter)

    def _bind(self, parameter: nn.Parameter) -> None:
        """Belong to a parameter."""
        self._parameter: Callable[[], nn.Parameter | None] = weakref.ref(parameter, registry.touch)
        self.is_active = self.is_enforced = True
        self.salvage: Tensor | None = None
        self.listener: Listener | None = None
        self.capture: Capture | None = None
        self.reader: weakref.ref[Optimizer] | None = None
        self._renew()
        self._window, self._looked = 0, False
        registry.enter(parameter, self)
        self._hook = hook_gradient(parameter, weakref.WeakMethod(self.receive_grad_))

    def _renew(self) -> None:
        """Take nothing for granted any more: the mask is another one."""
        self.key = next(_KEYS)
        self._seen: tuple[int, int] | None = None
        self._seen_grad: tuple[weakref.ref[Tensor], int] | None = None

    def release(self) -> None:
        """Let go of the parameter, and have the followers let go; zeros stay where they are, without history."""
        parameter = self._parameter()
        if parameter is not None:
            registry.lift(parameter, self)
        self.is_active = False
        self.salvage = self.listener = self.capture = self.reader = None
        if self._hook is not None:
            self._hook.remove()
        if parameter is not None:
            registry.leave(parameter, self)
        for follower in self.followers():
            follower.release()

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that is masked."""
        found = self._parameter()
        if found is None:
            raise ReferenceError("the masked parameter no longer exists: it was replaced, or its module deleted")
        return found

    @property
    def is_trained(self) -> bool:
        """Whether there is a parameter still, and gradients can reach it."""
        found = self._parameter()
        return self.is_active and found is not None and found.requires_grad

    def set(self, bits: Bits) -> None:
        """Take another mask; weights, gradients, optimizer state and followers are left to the caller."""
        self.bits = bits
        self.salvage = None
        self._renew()
        registry.touch()

    def listen(self, listener: Listener | None, *, enforced: bool = True) -> None:
        """Have somebody called around the steps of whichever optimizer holds the parameter; see the attributes."""
        if self.is_enforced and not enforced:
            registry.lift(self.parameter, self)
        self.listener, self.is_enforced = listener, enforced
        registry.hold(self.parameter, self, weakly=listener is not None)
        registry.touch()

    # ---- averages of the model, which follow its masks

    def lead(self, follower: Mask) -> None:
        """Have the mask of a copy of the parameter follow this one."""
        if all(known is not follower for known in self.followers()):
            self._followers.append(weakref.ref(follower))
            follower._leader = weakref.ref(self)

    def followers(self) -> Iterator[Mask]:
        """Masks of copies that follow this one."""
        living = (reference() for reference in list(self._followers))
        return (mask for mask in living if mask is not None and mask.is_active)

    # ---- applying

    def apply_(self) -> None:
        """Zero the masked weights, and their gradients if there are any."""
        self.salvage = None
        clear_weights_([self])
        self.clear_grad_()

    def apply_to_loaded_(self) -> None:
        """Zero masked weights that have just been loaded, and keep them aside if that changes anything."""
        loaded = self.parameter.detach().clone()
        self.apply_()
        self.salvage = None if _same(loaded, self.parameter) else loaded

    def apply_to_given_(self) -> None:
        """The same for a new parameter, whose data may be somebody else's: it gets data of its own instead."""
        given = self.parameter.data
        cleared = given.clone()
        self.bits.clear_(cleared)
        if not _same(given, cleared):
            self.parameter.data = cleared
            self.salvage = given
        self.remember()

    def is_untouched(self) -> bool:
        """Whether the weights are as they were when they were masked last, as far as autograd can see."""
        return self._seen == _evidence(self.parameter)

    def receive_grad_(self) -> None:
        """A backward pass has added to the gradient: zero it for masked weights, after it is kept aside if wanted."""
        is_left = self.capture is None and self.reader is not None and self.reader() is not None
        if is_left or not self.is_enforced:
            return
        gradient = self.parameter.grad
        if self.capture is not None and gradient is not None:
            seen = self._seen_grad
            on_top = seen is not None and seen[0]() is gradient and seen[1] + 1 == gradient._version
            self.capture.add(gradient, self.bits, continues=on_top)
        self.clear_grad_()

    def clear_grad_(self) -> None:
        """Zero the gradients of masked weights."""
        gradient = self.parameter.grad
        if gradient is None:
            return
        try:
            self.bits.clear_(gradient)
        except UnsupportedError:  # set by hand, with expand()
            gradient = self.parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            self.bits.clear_(gradient)
        self._seen_grad = weakref.ref(gradient), gradient._version

    def grad_is_clean(self) -> bool:
        """Whether the gradient is the one that was masked last, unchanged since (or there is none)."""
        gradient, seen = self.parameter.grad, self._seen_grad
        return gradient is None or (seen is not None and seen[0]() is gradient and seen[1] == gradient._version)

    def prepare_step(self) -> None:
        """Before an optimizer changes the weights: what has been written to since it was masked is masked again."""
        self.reader = None
        parameter, gradient = self.parameter, self.parameter.grad
        clear = self._window_is_clear(parameter, gradient)
        if not (clear and self.is_untouched()):
            _check_shape(parameter, self.bits.shape)
            clear_weights_([self])
        self.look_at_grad(is_clear=clear)
        if not (clear and self.grad_is_clean()):
            self.clear_grad_()

    def look_at_grad(self, *, is_clear: bool = True) -> None:
        """Before an optimizer changes the weights: notice a gradient that was put in place, or thrown away, by hand."""
        gradient, capture = self.parameter.grad, self.capture
        if capture is not None:
            if gradient is None:
                capture.total = None  # what had arrived was thrown away
            elif capture.total is None and not (is_clear and self.grad_is_clean()):
                capture.add_by_hand(gradient, self.bits)
        self.salvage = None

    def outlasts(self, *, sound: bool) -> bool:
        """After an optimizer's step: whether masked weights are zero still, so that they need not be masked again.

        Args:
            sound: The step is known to keep a weight of 0 with a gradient of 0 at 0, and nothing has interfered. That
                is relied on for a large tensor, which was looked at before.
        """
        held = sound and self._looked
        if held:
            self.remember()
        return held

    def remember(self) -> None:
        """Masked weights are zero now: note what the parameter looks like, to see when it is written to."""
        self._seen = _evidence(self.parameter)

    def _window_is_clear(self, parameter: Tensor, gradient: Tensor | None) -> bool:
        """Whether a large parameter and its gradient have only zeros at the masked places of the next window.

        It shows what autograd's version counters do not: writes through ``.data``. Small tensors are masked after every
        step and need no such look.
        """
        self._looked = self._is_large(parameter)
        if not self._looked:
            return True
        start = self._window = self._window + _WINDOW if self._window + _WINDOW < parameter.numel() else 0
        if gradient is None:
            return self.bits.is_clear(start, start + _WINDOW, parameter)
        alike = gradient.layout == torch.strided and gradient.dtype == parameter.dtype
        if alike and gradient.stride() == parameter.stride():
            return self.bits.is_clear(start, start + _WINDOW, parameter, gradient)
        both = [tensor for tensor in (parameter, gradient) if self._is_large(tensor)]
        return all(self.bits.is_clear(start, start + _WINDOW, tensor) for tensor in both)

    def _is_large(self, tensor: Tensor) -> bool:
        """Whether masking once more would cost something; on other devices than the CPU it does not."""
        return tensor.numel() > _SMALL and tensor.is_cpu and self.bits.is_flat(tensor)

    # ---- copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Mask:
        """A mask of the parameter's copy, with memory of its own; copies of followers follow it."""
        twin = memo[id(self)] = Mask.__new__(Mask)
        twin.__setstate__({**self.__getstate__(), "parameter": copy.deepcopy(self._parameter(), memo)})
        twin.bits = self.bits.copy()
        for follower in self.followers():
            if id(follower) in memo:
                twin.lead(memo[id(follower)])
        leader = self._leader and self._leader()
        if leader is not None and id(leader) in memo:
            memo[id(leader)].lead(twin)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """For pickling together with the module that owns the parameter."""
        return {
            "parameter": self._parameter(),
            "packed": self.bits.packed,
            "shape": tuple(self.bits.shape),
            "lean": self.bits.lean,
            "is_active": self.is_active,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Belong to the parameter that was loaded, hooks included."""
        self.bits = Bits(state["packed"], torch.Size(state["shape"]), lean=state["lean"])
        self._followers, self._leader, self._hook = [], None, None
        if state["is_active"] and state["parameter"] is not None:
            self._bind(state["parameter"])
        else:
            self.is_active, self._parameter = state["is_active"], _nothing
            self.salvage = self.listener = self.capture = self.reader = None
            self.is_enforced = True
            self._renew()


def clear_weights_(masks: Sequence[Mask]) -> None:
    """Zero the masked weights of some parameters, and note what they look like then."""
    clear_all_((mask.bits, mask.parameter) for mask in masks)
    for mask in masks:
        mask.remember()


def _nothing() -> None:
    """A weak reference to nothing."""


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape are equal; those on meta have no values to differ."""
    return one.is_meta or torch.equal(one, other)


def _evidence(tensor: Tensor) -> tuple[int, int]:
    """What changes when the tensor's data is replaced or written to in any way that autograd can see."""
    return tensor.data_ptr(), tensor._version


def _check_shape(parameter: Tensor, shape: torch.Size) -> None:
    """Refuse data of another shape, put in place by hand."""
    if parameter.shape != shape:
        raise ShapeError(
            "a masked parameter was given data of another shape than its mask.",
            parameter=tuple(parameter.shape),
            mask=tuple(shape),
            fix="secateur.resize_(module, name, dim=…, keep=…) cuts parameter, mask and optimizer state together",
        )


@finder
def _find(tensor: Tensor) -> Iterable[Mask]:
    """Surgery asks for what refers to a tensor: its mask."""
    mask = registry.mask_of(tensor)
    return [] if mask is None else [mask]


@holder(Mask)
def _follow(mask: Mask, changes: Sequence[Change]) -> Iterator[Do]:
    """The mask is cut like the parameter; new positions are kept."""
    for change in changes:
        if change.tensor is mask.parameter:
            old = mask.bits
            new = Bits.of(change.take(old.dense, fill=1.0), mask.parameter, lean=old.lean)
            yield Do(partial(mask.set, new), partial(mask.set, old))
            if mask.capture is not None and mask.capture.total is not None:
                total = mask.capture.total
                yield Do(partial(mask.capture.set, change.take(total)), partial(mask.capture.set, total))
