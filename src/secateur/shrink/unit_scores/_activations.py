"""How much, and how variably, a unit is active on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from secateur._passes import some_of, untouched
from secateur.graph.coupling import Coupling
from secateur.graph.labels import Dim
from secateur.shrink.unit_scores._sums import Scores, UnitScore, add_along, handed_up

__all__ = ["activation_mean", "activation_variance"]

Forward = Callable[[nn.Module, Any], Any]


def activation_mean(forward: Forward, batches: Iterable[Any], *, steps: int | None = None) -> UnitScore:
    r"""Mean activation: :math:`E\,|a|` over examples and all positions that would go with the unit.

    What counts is what the next linear layers and convolutions read, after norms and nonlinearities; for a unit that
    none of them reads (a query), what they make of it. Units that pass no such module stay.

    Args:
        forward: (model, batch) -> anything; runs the model on a batch, as your loss function does. The model is in the
            mode in which it is found.
        batches: What can be iterated anew for every plan: a ``DataLoader``, a list. An iterator would be used up.
        steps: How many batches to take from the beginning; all if left out.

    Returns:
        The score, for ``score=…``; infinite for units that pass no linear layer or convolution.

    Raises:
        InvalidInputError: When it is used: there is no batch.

    References:
        Molchanov et al., Pruning Convolutional Neural Networks for Resource Efficient Inference (2017).
    """
    return lambda model, coupling: _scored(model, coupling, forward, batches, steps, _Moments.mean)


def activation_variance(forward: Forward, batches: Iterable[Any], *, steps: int | None = None) -> UnitScore:
    r"""Variance of the activation: :math:`E\,a^2 - (E\,a)^2` over examples, its mean over all that goes with the unit.

    A unit that hardly varies says nothing about the input; what it adds is a constant, which a bias can learn.

    Args:
        forward: As for `activation_mean`, as all else: where activations are taken, what is returned and raised.
        batches: As there.
        steps: As there.

    Returns:
        The score, for ``score=…``.

    References:
        Polyak and Wolf, Channel-Level Acceleration of Deep Face Representations (2015).
    """
    return lambda model, coupling: _scored(model, coupling, forward, batches, steps, _Moments.variance)


@dataclass
class _Moments:
    """Sums over all that was seen at one side of one layer, a number for each position; None until something was.

    Args:
        dim: Labels of the positions.
        channel: Which dim of the activation they are, counted from the end.
    """

    dim: Dim
    channel: int
    number: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(3, 1, dtype=torch.float64))

    def add(self, activation: Tensor) -> None:
        """Take an activation into account."""
        rows = activation.detach().double().movedim(self.channel, 0).flatten(start_dim=1).cpu()
        self.number += rows.shape[1]
        self.sums = self.sums + torch.stack([rows.abs().sum(1), rows.sum(1), rows.square().sum(1)])

    def mean(self) -> Tensor:
        """Mean absolute value, shape (positions,)."""
        return self.sums[0] / self.number

    def variance(self) -> Tensor:
        """Population variance, shape (positions,)."""
        return (self.sums[2] / self.number - (self.sums[1] / self.number).square()).clamp(min=0.0)


def _scored(
    model: nn.Module,
    coupling: Coupling,
    forward: Forward,
    batches: Iterable[Any],
    steps: int | None,
    statistic: Callable[[_Moments], Tensor],
) -> Scores:
    """Run the model on the batches, watched, and give every class the mean of a statistic over its positions."""
    with untouched(model), _watched(model, coupling) as (read, made):
        for batch in some_of(batches, steps):
            forward(model, batch)
    of_readers, of_makers = (_mean_over_positions(coupling, several, statistic) for several in (read, made))
    return np.where(np.isfinite(of_readers), of_readers, of_makers)


def _mean_over_positions(
    coupling: Coupling, several: Iterable[_Moments], statistic: Callable[[_Moments], Tensor]
) -> Scores:
    """Mean of the statistic over all positions that go with a class; infinite for classes with none."""
    total, count = np.zeros(len(coupling.solution.parents)), np.zeros(len(coupling.solution.parents))
    for moments in several:
        if moments.number:
            values = statistic(moments)
            add_along(coupling, moments.dim, values, total)
            add_along(coupling, moments.dim, torch.ones_like(values), count)
    total, count = handed_up(coupling, total), handed_up(coupling, count)
    return np.divide(total, count, out=np.full_like(total, np.inf), where=count > 0)


@contextmanager
def _watched(model: nn.Module, coupling: Coupling) -> Iterator[tuple[list[_Moments], list[_Moments]]]:
    """Collect moments of what the layers read and of what they make while the context is open."""
    read: list[_Moments] = []
    made: list[_Moments] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with ExitStack() as stack:
        for module in model.modules():
            name = names.get(id(getattr(module, "weight", None)))
            if name is None or not isinstance(module, nn.Linear | _ConvNd):
                continue
            inputs, outputs, channel = _sides(module)
            of_input = [_Moments(coupling.dims[name][d], channel) for d in inputs]
            of_output = [_Moments(coupling.dims[name][d], channel) for d in outputs]
            hook = module.register_forward_hook(_noting(of_input, of_output), with_kwargs=True)
            stack.callback(hook.remove)
            read += of_input
            made += of_output
        yield read, made


def _sides(module: nn.Linear | _ConvNd) -> tuple[list[int], list[int], int]:
    """Dims of the weight that are the input's and the output's channels, and where those stand in an activation.

    A grouped convolution's weight has only the channels of one group along one of its dims, so that side is left out.
    """
    if isinstance(module, nn.Linear):
        return [1], [0], -1
    channel = -len(module.kernel_size) - 1
    grouped: list[int] = [1] if module.groups == 1 else []
    return ([0], grouped, channel) if isinstance(module, _ConvTransposeNd) else (grouped, [0], channel)


def _noting(of_input: list[_Moments], of_output: list[_Moments]) -> Callable[..., None]:
    """A forward hook that takes an activation into account on both sides."""

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        for moments in of_input:
            moments.add(args[0] if args else kwargs["input"])
        for moments in of_output:
            moments.add(output)

    return note
