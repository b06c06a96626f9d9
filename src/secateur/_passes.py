"""Running the user's model on the user's data without leaving a trace."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from secateur import _compat
from secateur._errors import InvalidInputError
from secateur._progress import track
from secateur._restoring import attributes_restored

__all__ = [
    "Inputs",
    "LossFunction",
    "call_with",
    "evaluating",
    "in_double",
    "loss_on",
    "some_of",
    "traceless",
    "undisturbed",
    "untouched",
    "without_collections",
]

Inputs = Tensor | Sequence[Any] | Mapping[str, Any] | Callable[[nn.Module], Any]
"""Example inputs: one tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model."""

LossFunction = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> the loss, a scalar."""

Batch = TypeVar("Batch")


def call_with(model: nn.Module, inputs: Inputs) -> Any:
    """Run the model on example inputs of any form."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, Sequence):
        return model(*inputs)
    return inputs(model)


@contextmanager
def traceless(model: nn.Module) -> Iterator[None]:
    """Run a model without gradients and without a trace: random state, buffers, attributes are put back afterwards."""
    kinds: dict[object, list[Tensor]] = {}
    for buffer in model.buffers():
        if not _compat.is_fake(buffer):
            is_plain = buffer.layout == torch.strided and not buffer.is_quantized
            kinds.setdefault((buffer.dtype, buffer.device) if is_plain else buffer, []).append(buffer)
    before = [(buffers, [buffer.shape for buffer in buffers], _values(buffers)) for buffers in kinds.values()]
    with _random_states_restored(), torch.no_grad(), attributes_restored(model):
        try:
            yield
        finally:
            for kind in before:
                _put_back(*kind)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """As `traceless`, with nothing opaque: compiled code and the fast path of nn.MultiheadAttention are off."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with traceless(model), _compat.without_compiler():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


def _values(buffers: Sequence[Tensor]) -> Tensor:
    """The values of several tensors of one kind in new memory: a model may have hundreds of small ones."""
    if len(buffers) == 1:
        return buffers[0].detach().clone()
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers])


def _put_back(buffers: Sequence[Tensor], shapes: Sequence[torch.Size], values: Tensor) -> None:
    """Give tensors their values again; they are compared first, as BatchNorm's kernels raise no version counter."""
    if [buffer.shape for buffer in buffers] == shapes and _is_same(_values(buffers), values):
        return
    several = values.split([shape.numel() for shape in shapes]) if len(shapes) > 1 else [values]
    for buffer, shape, own in zip(buffers, shapes, several, strict=True):
        own = own if len(shapes) == 1 else own.view(shape)
        if buffer.shape == shape and not _is_same(buffer, own):
            buffer.copy_(own)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are known to have the same values; sparse ones cannot be compared."""
    return one.layout == torch.strided and torch.equal(one, other)


@contextmanager
def _random_states_restored() -> Iterator[None]:
    """Put the global random states of torch, on every device, of numpy and of Python back when the block ends."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


@contextmanager
def _modes_restored(model: nn.Module) -> Iterator[None]:
    """Put the train/eval flag of every module back when the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Have a model in evaluation mode, and put every module's flag back afterwards."""
    with _modes_restored(model):
        model.eval()
        yield


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """As `undisturbed`, and put gradients (as objects) and all flags back; there are no gradients inside."""
    before = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]
    with undisturbed(model), _modes_restored(model):
        try:
            for parameter, _, _ in before:
                parameter.grad = None
            yield
        finally:
            for parameter, gradient, requires_grad in before:
                parameter.grad = gradient
                if parameter.requires_grad != requires_grad:
                    parameter.requires_grad = requires_grad


@contextmanager
def in_double() -> Iterator[None]:
    """Tensors that the model makes are in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def without_collections() -> Iterator[None]:
    """Have no garbage collection meanwhile: facts about a model are many small objects, none of them in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def some_of(batches: Iterable[Batch], steps: int | None) -> Iterator[Batch]:
    """The first batches, as many as asked for, or all.

    Raises:
        InvalidInputError: There is none, what is given is a batch and not several, or `steps` is no number of them.
    """
    if isinstance(batches, Tensor | Mapping) or not isinstance(batches, Iterable):
        raise InvalidInputError(
            "batches are a list or a DataLoader of batches.",
            found=type(batches).__name__,
            fix="[batch] for a single one",
        )
    if steps is not None and not (isinstance(steps, int) and steps >= 0):
        raise InvalidInputError("steps is the number of batches to take.", steps=repr(steps), fix="None takes all")
    number = 0
    for batch in track(batches, "scoring by batches", most=steps):
        yield batch
        number += 1
    if not number:
        raise InvalidInputError(
            "there is no batch to score by.",
            batches=type(batches).__name__,
            steps=steps,
            fix="pass a list or a DataLoader, not an iterator, which is empty once it has been used",
        )


def loss_on(model: nn.Module, loss_fn: LossFunction, batch: Any) -> Tensor:
    """The user's loss on one batch, with its graph.

    Raises:
        InvalidInputError: It is no scalar, or has no graph.
    """
    with torch.enable_grad():
        loss = loss_fn(model, batch)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex() or not loss.requires_grad:
        raise InvalidInputError(
            "the loss function must return a scalar real tensor that depends on trained parameters.",
            returned=f"{tuple(loss.shape)} of {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__,
            fix="loss_fn=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])",
        )
    return loss
