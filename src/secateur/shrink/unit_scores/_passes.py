"""Running the user's model on the user's data without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from torch import nn

from secateur._errors import InvalidInputError
from secateur.graph.trace import undisturbed

__all__ = ["some_of", "untouched"]

Batch = TypeVar("Batch")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put gradients (as objects), buffers, torch's random state and train/eval flags back; no gradients inside."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    with undisturbed(model):
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, training in modes:
                module.training = training


def some_of(batches: Iterable[Batch], steps: int | None) -> Iterator[Batch]:
    """The first batches, as many as asked for, or all.

    Raises:
        InvalidInputError: There is none.
    """
    number = 0
    for batch in islice(batches, steps):
        yield batch
        number += 1
    if not number:
        raise InvalidInputError("there is no batch to score by.", fix="pass a list or a DataLoader, not an iterator")
