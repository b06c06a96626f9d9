"""The coupling that a plan rests on: a new one, or one that was given and still fits."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from secateur._errors import InvalidInputError, ShapeError
from secateur._names import Selector
from secateur._wrappers import refuse_model
from secateur.graph.coupling import Coupling, analyze
from secateur.graph.trace import Inputs, named_tensors
from secateur.shrink.choosing import size_of
from secateur.shrink.fit import shape_of

__all__ = ["coupling_for", "refuse_coupling"]


def coupling_for(
    model: nn.Module, example_inputs: Inputs, *, ignore: Iterable[Selector] | Selector, given: Coupling | None
) -> Coupling:
    """The coupling of a model.

    Args:
        model: The model.
        example_inputs: As for `analyze`.
        ignore: As for `analyze`.
        given: What the caller has, if anything.

    Raises:
        InvalidInputError: It is no model or no coupling, or `ignore` is given beside one.
        ShapeError: The coupling is that of another model, or of this one before it changed.
    """
    if given is None:
        return analyze(model, example_inputs, ignore=ignore)
    if ignore:
        raise InvalidInputError(
            "ignore=… has no effect on a coupling that is there already.",
            ignore=ignore,
            fix="give it to analyze(model, example_inputs, ignore=…) instead",
        )
    refuse_coupling(model, given)
    return given


def refuse_coupling(model: nn.Module, coupling: Coupling) -> None:
    """Refuse a coupling that is not that of a model as it is.

    Raises:
        InvalidInputError: It is no model or no coupling.
        ShapeError: A tensor that units go through is missing or has another size.
    """
    refuse_model(model)
    if not isinstance(coupling, Coupling):
        raise InvalidInputError(
            "a coupling is what analyze returns.", given=type(coupling).__name__, fix="analyze(model, example_inputs)"
        )
    tensors = named_tensors(model)
    for group in coupling.groups:
        for name, dim in group.footprint:
            size, shape = size_of(coupling, name, dim), shape_of(tensors.get(name))
            if isinstance(shape, str) or shape[dim : dim + 1] != (size,):
                raise ShapeError(
                    f"the coupling is not that of this model as it is: {name!r} differs.",
                    then=f"{size} along dim {dim}",
                    now=shape,
                    fix="analyze(model, example_inputs) again",
                )
