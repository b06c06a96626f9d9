"""Steps of AdamW and SGD over kept weights (``sources/stepping.c``).

Whether that can be done to a tensor is asked first (`can_step`, `can_move`). What is passed then must fit.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

import secateur._native as native

__all__ = ["Job", "can_move", "can_step", "move_state", "step_adamw", "step_sgd"]

_PLAIN = (Tensor, nn.Parameter)

_ten = struct.Struct("10q").pack


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
        return _ten(
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
    jobs: Sequence[Job], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, maximize: bool
) -> None:
    """Step tensors as ``torch.optim.AdamW(fused=True)`` steps them, kept weights only.

    Raises:
        ValueError: State of a tensor is not as long as its mask keeps weights. No tensor is changed then.
    """
    _step("adamw", jobs, [*betas, lr, eps, weight_decay, -1.0 if maximize else 1.0])


def step_sgd(
    jobs: Sequence[Job],
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
    _step("sgd", jobs, [lr, momentum, dampening, weight_decay, -1.0 if maximize else 1.0, float(nesterov)])


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


def _step(name: str, jobs: Sequence[Job], options: Sequence[float]) -> None:
    """Call one of the two kernels, and have autograd see that tensors have changed."""
    for job in jobs:
        if any(state.numel() != job.num_kept for state in job.states):
            raise ValueError(f"state of {[s.numel() for s in job.states]} entries, for {job.num_kept} kept weights")
    rows, numbers = b"".join([job.row() for job in jobs]), struct.pack(f"{len(options)}d", *options)
    done = getattr(_kernels(native.library()), name)(rows, len(jobs), numbers, torch.get_num_threads())
    if done != len(jobs):
        raise ValueError(f"the mask keeps another number of weights than {jobs[done].num_kept}")
    increment_version([tensor for job in jobs for tensor in job.changed()])
