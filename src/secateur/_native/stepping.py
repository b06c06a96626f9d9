"""Steps of AdamW and SGD over kept weights (``sources/stepping.c``).

Whether that can be done to a tensor is asked first (`can_step`, `can_move`). What is passed then must fit.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from ctypes import c_char, c_char_p, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

import secateur._native as native

__all__ = ["Batch", "Job", "can_move", "can_step", "move_state", "step_adamw", "step_sgd"]

_PLAIN = (Tensor, nn.Parameter)

_TEN, _ONE = struct.Struct("10q"), struct.Struct("q")


class Job(NamedTuple):
    """One tensor that is stepped.

    Args:
        weights: float32, contiguous; its masked entries become 0.
        gradients: The same shape, contiguous; what masked entries hold has no influence.
        bits: Packed mask, row by row; None if all weights are kept.
        states: Compact state: AdamW's two moments, or three with amsgrad; SGD's momentum, or none.
        num_kept: Kept weights: the number of entries of each state.
        steps: AdamW's count of the steps before this one, float32, which is raised by 1; SGD has none.
        begins: SGD's momentum begins with the gradient.
    """

    weights: Tensor
    gradients: Tensor
    bits: Tensor | None
    states: tuple[Tensor, ...]
    num_kept: int
    steps: Tensor | None = None
    begins: bool = False

    def row(self) -> bytes:
        """What the kernels take."""
        states = [state.data_ptr() for state in self.states]
        return _TEN.pack(
            self.weights.data_ptr(),
            self.gradients.data_ptr(),
            0 if self.bits is None else self.bits.data_ptr(),
            self.weights.numel(),
            self.num_kept,
            *states,
            *[0] * (3 - len(states)),
            0 if self.steps is None else self.steps.data_ptr(),
            self.begins,
        )

    def changed(self) -> list[Tensor]:
        """What a step writes to."""
        return [self.weights, *self.states] if self.steps is None else [self.weights, *self.states, self.steps]


class Batch:
    """Tensors that are stepped in one call, and can be stepped again with gradients that lie elsewhere.

    Args:
        jobs: The tensors, one at least. Their gradients have to live until the step.

    Attributes:
        begins: Momentum of one begins: the next step is another one.

    Raises:
        ValueError: State of a tensor is not as long as its mask keeps weights.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if any(state.numel() != job.num_kept for state in job.states):
                held = [state.numel() for state in job.states]
                raise ValueError(f"state of {held} entries, for {job.num_kept} kept weights")
        self.begins = any(job.begins for job in jobs)
        self._num_kept = [job.num_kept for job in jobs]  # and no gradients: they would live on
        self._rows = bytearray().join(job.row() for job in jobs)
        self._changed = [tensor for job in jobs for tensor in job.changed()]
        self._memory = (c_char * len(self._rows)).from_buffer(self._rows)

    def point_to(self, index: int, gradient: int) -> None:
        """Say where the gradient of a tensor lies now."""
        _ONE.pack_into(self._rows, _TEN.size * index + _ONE.size, gradient)

    def step(self, name: str, options: Sequence[float]) -> None:
        """Call one of the two kernels, and have autograd see that tensors have changed."""
        numbers = struct.pack(f"{len(options)}d", *options)
        kernel = getattr(_kernels(native.library()), name)
        done = kernel(self._memory, len(self._num_kept), numbers, torch.get_num_threads())
        if done != len(self._num_kept):
            raise ValueError(f"the mask keeps another number of weights than {self._num_kept[done]}")
        increment_version(self._changed)


def can_step(weights: Tensor, gradients: Tensor, bits: Tensor | None, states: Sequence[Tensor] = ()) -> bool:
    """Whether there is a library, and it steps such tensors; how long states are is seen when it does."""
    return (
        native.library() is not None
        and weights.shape == gradients.shape
        and (bits is None or bits.is_cpu)
        and type(weights) in _PLAIN
        and type(gradients) in _PLAIN
        and all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in (weights, gradients, *states))
    )


def step_adamw(
    batch: Batch, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, maximize: bool
) -> None:
    """Step tensors as ``torch.optim.AdamW(fused=True)`` steps them, kept weights only.

    Raises:
        ValueError: A mask keeps another number of weights than was said. No tensor is changed then.
    """
    batch.step("adamw", [*betas, lr, eps, weight_decay, -1.0 if maximize else 1.0])


def step_sgd(
    batch: Batch,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Step tensors as ``torch.optim.SGD(fused=True)`` steps them, kept weights only.

    Raises:
        ValueError: As for `step_adamw`.
    """
    batch.step("sgd", [lr, momentum, dampening, weight_decay, -1.0 if maximize else 1.0, float(nesterov)])


def can_move(values: Tensor) -> bool:
    """Whether there is a library, and it moves such state."""
    return native.library() is not None and values.dtype == torch.float32 and values.is_cpu


def move_state(values: Tensor, old: Tensor, new: Tensor, num_kept: int) -> Tensor:
    """The state of the weights that `new` keeps, from `values` of those that `old` keeps; 0 where there was none.

    Args:
        values: float32, as long as `old` has ones; contiguous.
        old: Packed mask.
        new: Packed mask of as many entries.
        num_kept: Ones of `new`.

    Returns:
        float32 ``(num_kept,)``.
    """
    made = torch.empty(num_kept, dtype=torch.float32)
    _kernels(native.library()).move(
        values.data_ptr(), old.data_ptr(), new.data_ptr(), old.numel() // 8, made.data_ptr()
    )
    return made


class _Kernels:
    """The functions of a library."""

    def __init__(self, library: native.Library) -> None:
        step = [c_char_p, c_int64, c_char_p, c_int]
        self.adamw: Any = library.function("step_adamw", step, c_int64)
        self.sgd: Any = library.function("step_sgd", step, c_int64)
        self.move: Any = library.function("move_state", [c_void_p, c_void_p, c_void_p, c_int64, c_void_p])


@functools.cache
def _kernels(library: native.Library | None) -> _Kernels:
    """The functions of a library, looked up once."""
    if library is None:
        raise RuntimeError("there is no library")
    return _Kernels(library)
