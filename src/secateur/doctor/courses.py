"""What is known of the optimizers of a program: how far each has come, and whether its next step needs a look.

`Course.beat` runs in every step. What it costs is how many objects it touches, as after a backward pass none of them is
in the caches: so its state lies in slots, and all reasons to look are two numbers and a time.
"""

from __future__ import annotations

import weakref
from time import perf_counter

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateur.doctor.drift import Zeros

__all__ = ["Course", "Courses", "Signal", "held_by"]

_VERSION = torch._C.TensorBase._version.__get__  # type: ignore[attr-defined]


class Signal:
    """What has happened in the whole program.

    Attributes:
        alarms: How often something was put into a model that is trained, or a parameter was cut.
        reads: How often ``data`` of a parameter was asked for, which hides what is done with it.
    """

    __slots__ = ("alarms", "reads")

    def __init__(self) -> None:
        self.alarms = self.reads = 0


class Courses(dict[int, "Course"]):
    """The courses by the optimizers' ids; each goes when its optimizer does.

    Attributes:
        num_gone: How many steps were those of optimizers that are gone.
    """

    num_gone = 0

    @property
    def num_steps(self) -> int:
        """How many steps all optimizers together have begun."""
        return self.num_gone + sum(course.steps for course in self.values())

    def forget(self, key: int) -> None:
        """An optimizer has gone."""
        self.num_gone += self.pop(key).steps


class Course:
    """What is known of an optimizer, which is not kept alive.

    Args:
        optimizer: The optimizer.
        signal: What happens in the program.
        courses: Where the course is kept.

    Attributes:
        optimizer: A weak reference to the optimizer.
        steps: How many steps it has begun.
        had_gradient: Whether it has ever had a gradient.
        zeros: The zeros before the last step, if they are followed.
        was_written: Whether somebody may have written to weights between the last two steps.
        is_due: Whether values are to be looked at after this step.
        next_look: When that is so again, on the clock of `time.perf_counter`.
        due: When `beat` says so in any case: then, or 0 for the next step.
    """

    __slots__ = (
        "_heard_alarms",
        "_heard_reads",
        "_signal",
        "_stride",
        "_usual",
        "_version",
        "_weights",
        "due",
        "had_gradient",
        "is_due",
        "next_look",
        "optimizer",
        "steps",
        "was_written",
        "zeros",
    )

    def __init__(self, optimizer: Optimizer, signal: Signal, courses: Courses) -> None:
        key = id(optimizer)
        self.optimizer = weakref.ref(optimizer, lambda _: courses.forget(key))
        self._signal, self._heard_alarms, self._heard_reads = signal, signal.alarms, signal.reads
        self.steps, self.due, self.next_look = 0, 0.0, 0.0
        self.had_gradient = self.was_written = self.is_due = False
        self.zeros: Zeros | None = None
        self._version = self._stride = self._usual = 0
        self.learn()

    def learn(self) -> None:
        """From now on follow the weights that the optimizer has now."""
        optimizer = self.optimizer()
        held = held_by(optimizer) if optimizer is not None else []
        self._weights = [tensor for tensor in held if tensor.dim() > 1 and not tensor.is_inference()]

    def beat(self) -> bool:
        """Count a step; say whether it needs a look: weights were written to more often than usual, or others call."""
        self.steps += 1
        version = sum(map(_VERSION, self._weights))
        self._stride = version - self._version
        self._version = version
        signal = self._signal
        return (
            self._stride != self._usual
            or signal.alarms != self._heard_alarms
            or signal.reads != self._heard_reads
            or perf_counter() >= self.due
        )

    def hear(self) -> None:
        """Take notice of what has happened up to this step."""
        signal = self._signal
        self.was_written = self._stride != self._usual or signal.reads != self._heard_reads
        self._usual, self._heard_alarms, self._heard_reads = self._stride, signal.alarms, signal.reads


def held_by(optimizer: Optimizer) -> list[Tensor]:
    """All tensors of all groups."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]
