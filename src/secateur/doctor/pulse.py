"""The part of a watch that runs in every step, made to cost about a microsecond.

At this scale what counts is how many Python objects are touched: after a backward pass none of them is in the caches.
So a step calls one function in C, which both counts and says whether it is time to look. Identities are not looked at:
torch itself calls a hook when a parameter or module is put into a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import length_hint

from torch import Tensor

__all__ = ["Pulse"]

_ROUND = 64
_EVERY = 16
"""Sizes are compared once in so many steps."""


class Pulse:
    """Counts steps, and says when to look: at once after an alarm, else when it sees that a tensor's size changed.

    Example:
        >>> import torch
        >>> pulse, tensor = Pulse(), torch.zeros(3)
        >>> pulse.learn([tensor])
        >>> beat = pulse.hook(lambda step: print("look, step", step))
        >>> for step in range(1, 18):
        ...     beat(None, (), {})
        ...     if step == 1:
        ...         pulse.alarm()
        ...     if step == 3:
        ...         tensor.data = torch.zeros(2)
        look, step 2
        look, step 16
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._left = _round()
        self._rings = False
        self._tick: list[Callable[[], bool]] = [self._left.__next__]
        self._tensors: list[Tensor] = []
        self._total = 0

    @property
    def num_beats(self) -> int:
        """How many steps have begun."""
        return self._rounds * _ROUND + _ROUND - length_hint(self._left)

    def learn(self, tensors: Iterable[Tensor]) -> None:
        """From now on watch these tensors, as they are now."""
        self._tensors = list(tensors)
        self._total = self._sum()

    def alarm(self) -> None:
        """Have the next beat look."""
        self._rings = True
        self._tick[0] = self._ring

    def hook(self, look: Callable[[int], object]) -> Callable[[object, object, object], None]:
        """A hook for ``register_step_pre_hook`` that calls `look` with the number of the step when it is time."""
        tick = self._tick

        def beat(optimizer: object, args: object, kwargs: object) -> None:
            if tick[0]():
                self._look(look)

        return beat

    def second_hook(self, look: Callable[[int], object]) -> Callable[[object, object, object], None]:
        """The same for a second optimizer, whose steps are not counted."""

        def beat(optimizer: object, args: object, kwargs: object) -> None:
            if self._rings:
                self._look(look)

        return beat

    def _sum(self) -> int:
        """Entries of all tensors; the quickest word on their shapes."""
        return sum(map(Tensor.numel, self._tensors))

    def _ring(self) -> bool:
        """Count as ever, and say that it is time."""
        next(self._left)
        return True

    def _look(self, look: Callable[[int], object]) -> None:
        """Look if there is a reason, and go on quietly, in a new round if this one is over."""
        step, reason = self.num_beats, self._rings or self._sum() != self._total
        if not length_hint(self._left):
            self._rounds, self._left = self._rounds + 1, _round()
        self._rings = False
        self._tick[0] = self._left.__next__
        if reason:
            look(step)


def _round() -> Iterator[bool]:
    """False for each step of a round but every sixteenth; the last is True."""
    return iter(([False] * (_EVERY - 1) + [True]) * (_ROUND // _EVERY))
