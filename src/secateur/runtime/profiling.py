"""Sizes, work and speed of models, side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from secateur import _compat
from secateur._errors import InvalidInputError, UnsupportedError
from secateur._machine import machine_name, wait_for
from secateur._passes import Inputs, call_with, evaluating, traceless, undisturbed
from secateur._progress import task, track
from secateur._wrappers import unwrapped
from secateur.graph.trace import refuse_strange
from secateur.runtime.profile_result import ModelProfile, Profile
from secateur.runtime.profile_sizes import self_counting, sizes_of
from secateur.runtime.profile_times import Latency, latencies
from secateur.runtime.profile_work import Work, work_of

__all__ = ["profile"]

_NO_VALUES = "latency: none, the model has no values (it is fake, or on the meta device)"
_MASKED = "masked only: file size and dense speed unchanged until compacted by secateur.shrink_ or secateur.compress"
_MOST_THREADS = 1024  # OpenMP ends the process if it cannot have as many as it is told
_NOTABLE = 0.05  # share of zeros from which a model counts as masked


@task("measuring")
def profile(
    models: nn.Module | Mapping[str, nn.Module],
    example_inputs: Inputs,
    *,
    seconds: float = 1.0,
    threads: int | None = None,
) -> Profile:
    """Measure what one model holds and costs, or several side by side.

    The models run in evaluation mode and without gradients, compiled ones compiled. Several are timed in turns, so that
    all meet the same machine. Afterwards they are as they were: modes, gradients, buffers, attributes; and so are the
    random states.

    Args:
        models: A model, or several by name; the first is what others are compared to.
        example_inputs: A tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model.
            Their sizes are those that the figures are for.
        seconds: How long a model may be timed for, warm-up aside; 0 times none.
        threads: Number of threads that torch uses meanwhile; as it is now if left out.

    Returns:
        The figures, a table when printed.

    Raises:
        InvalidInputError: No model, none at all, example inputs of no known form, or numbers out of range.
        UnsupportedError: A parameter is lazy, so it has no size yet.

        What a model's own forward raises on the example inputs comes through, with a note on which model it was.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> row = profile(model, torch.randn(2, 8), seconds=0)["Sequential"]
        >>> row.parameters, row.macs, row.bytes
        (212, 384, 848)
    """
    named = _named(models)
    refuse_strange(example_inputs)
    _check_numbers(seconds, threads)
    with _threads(threads), ExitStack() as stack:
        for model in named.values():
            stack.enter_context(evaluating(model))
        works = {n: _work(n, model, example_inputs) for n, model in track(named.items(), "counting operations")}
        times = _times({name: model for name, model in named.items() if _has_values(model)}, example_inputs, seconds)
        machine = machine_name(*_place(next(iter(named.values()))))
    rows = [_row(name, model, works[name], times.get(name)) for name, model in named.items()]
    return Profile(tuple(rows), machine)


def _named(models: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Models by name.

    Raises:
        InvalidInputError: There is none, or something is none.
        UnsupportedError: One has no sizes yet.
    """
    fix = 'profile(model, x), or profile({"dense": model, "masked": other}, x)'
    if isinstance(models, nn.Module):
        models = {type(unwrapped(models)).__name__: models}
    if not isinstance(models, Mapping):
        raise InvalidInputError("a model, or several by name, is profiled.", found=type(models).__name__, fix=fix)
    if not models:
        raise InvalidInputError("there is no model to profile.", found="an empty dict", fix=fix)
    for name, model in models.items():
        if not isinstance(name, str) or not isinstance(model, nn.Module):
            raise InvalidInputError("models go by names.", name=repr(name), model=type(model).__name__, fix=fix)
        lazy = next((n for n, p in (*model.named_parameters(), *model.named_buffers()) if is_lazy(p)), None)
        if lazy is not None:
            raise UnsupportedError(
                f"{lazy!r} of {name!r} is lazy: it has no shape yet.", fix="run one forward pass first"
            )
    return dict(models)


def _check_numbers(seconds: float, threads: int | None) -> None:
    """Refuse a time or a number of threads that is none.

    Raises:
        InvalidInputError: One is.
    """
    if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise InvalidInputError("a model is timed for a number of seconds.", seconds=repr(seconds), fix="seconds=1.0")
    is_number = isinstance(threads, int) and not isinstance(threads, bool) and 0 < threads <= _MOST_THREADS
    if threads is not None and not is_number:
        raise InvalidInputError("the number of threads is a positive integer.", threads=repr(threads), fix="threads=1")


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Have torch use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _work(name: str, model: nn.Module, inputs: Inputs) -> Work:
    """What a run costs."""
    with undisturbed(model):
        try:
            return work_of(model, inputs)
        except Exception as error:
            error.add_note(f"raised by {name!r} as secateur ran it on the example inputs")
            raise


def _times(models: Mapping[str, nn.Module], inputs: Inputs, seconds: float) -> dict[str, Latency]:
    """How long models run, in turns; nothing if there is no time to find out."""
    if not models or not seconds:
        return {}
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(traceless(model))
        calls = [partial(_run, model, inputs, _place(model)[0]) for model in models.values()]
        return dict(zip(models, latencies(calls, seconds * len(calls)), strict=True))


def _run(model: nn.Module, inputs: Inputs, device: torch.device) -> None:
    """One run, to its end."""
    call_with(model, inputs)
    wait_for(device)


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the first floating-point tensor of a model."""
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def _has_values(model: nn.Module) -> bool:
    """Whether a model can be timed."""
    return not any(map(_compat.is_fake, itertools.chain(model.parameters(), model.buffers())))


def _row(name: str, model: nn.Module, work: Work, latency: Latency | None) -> ModelProfile:
    """The figures of one model, with a note where they might surprise."""
    sizes = sizes_of(model)
    note = "" if _has_values(model) else _NO_VALUES
    if sizes.nonzeros is not None and sizes.nonzeros < (1 - _NOTABLE) * sizes.parameters and not self_counting(model):
        note = _MASKED
    return ModelProfile(name, *sizes[:2], *work, sizes.bytes, latency, note)
