"""Steps of AdamW and SGD over kept weights (``sources/stepping.c``).

Whether that can be done to a tensor is asked first (`can_step`, `can_move`).
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

_nine = struct.Struct("9q").pack


class Job(NamedTuple):
    """One tensor that is stepped.

    Args:
        weights: float32, contiguous; its masked entries become 0.
        gradients: The same shape, contiguous; only kept entries are read.
        bits: Packed mask, row by row.
        step: Number of this step, from 1.
        states: Compact state: AdamW's two moments, or three with amsgrad; SGD's momentum, or none.
        num_kept: Kept weights: the length of each state.
    """

    weights: Tensor
    gradients: Tensor
    bits: Tensor
    step: int
    states: tuple[Tensor, ...]
    num_kept: int

    def row(self) -> bytes:
        """What the kernels take."""
        states = [state.data_ptr() for state in self.states]
        return _nine(
            self.weights.data_ptr(),
            self.gradients.data_ptr(),
            self.bits.data_ptr(),
            self.weights.numel(),
            self.num_kept,
            *states,
            *[0] * (3 - len(states)),
            self.step,
        )


def can_step(weights: Tensor, gradients: Tensor, bits: Tensor) -> bool:
    """Whether there is a library, and it steps such tensors."""
    return (
        native.library() is not None
        and weights.dtype == gradients.dtype == torch.float32
        and weights.shape == gradients.shape
        and bits.is_cpu
        and all(type(t) in _PLAIN and t.is_cpu and t.is_contiguous() for t in (weights, gradients))
    )


def step_adamw(
    jobs: Sequence[Job], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, maximize: bool
) -> None:
    """Step tensors as ``torch.optim.AdamW(fused=True)`` steps them, kept weights only.

    Raises:
        ValueError: State of a tensor is not as long as its mask keeps weights, or not float32 on the CPU. No tensor is
            changed then.
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
    """Step tensors as ``torch.optim.SGD(fused=True)`` steps them; momentum begins with the gradient at step 1.

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
        for state in job.states:
            if state.shape != (job.num_kept,) or not state.is_contiguous():
                raise ValueError(f"state of {[*map(len, job.states)]} entries, for {job.num_kept} kept weights")
            if state.dtype != torch.float32 or not state.is_cpu:
                raise ValueError(f"state is {state.dtype} on {state.device}, not torch.float32 on the CPU")
    rows, numbers = b"".join([job.row() for job in jobs]), struct.pack(f"{len(options)}d", *options)
    done = getattr(_kernels(native.library()), name)(rows, len(jobs), numbers, torch.get_num_threads())
    if done != len(jobs):
        raise ValueError(f"the mask keeps another number of weights than {jobs[done].num_kept}")
    increment_version([tensor for job in jobs for tensor in (job.weights, *job.states)])
