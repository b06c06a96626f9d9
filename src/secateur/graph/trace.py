"""Run a model on example inputs, watched from both sides, and leave it exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateur._errors import InvalidInputError, UnsupportedError
from secateur._passes import Inputs, call_with, undisturbed
from secateur._wrappers import refuse_model
from secateur.graph.capture import Capture, tensors_in
from secateur.graph.costs import Activation, Product
from secateur.graph.heads import free_heads
from secateur.graph.labels import Dim, Dims, Labels
from secateur.graph.outlining import Outline, in_earnest, outlined_first
from secateur.graph.provenance import AttributeSizes
from secateur.graph.ran import Ran
from secateur.graph.rules import rule_for
from secateur.graph.siblings import reached_siblings
from secateur.graph.watching import Tie, Used, Watch
from secateur.graph.writes import weights_restored

__all__ = ["Inputs", "Traced", "call_with", "named_tensors", "refuse_strange", "trace", "undisturbed"]


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by their first dotted names."""
    found: dict[str, Tensor] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name] = tensor
    return found


@dataclass
class Traced:
    """What one or several runs have brought to light.

    Args:
        labels: Equations, definitions and blocks.
        dims: Labels of every parameter and buffer, by first dotted name.
        ties: Numbers in the code that fix a dim.
        values: Sizes that the code uses as values.
        mixed: Dims whose positions some op combines, with the op's name.
        random: Dims of random tensors, with the op's name; fewer positions are another draw.
        multiples: Dims of which an op needs a multiple of some number.
        products: Every matrix product and convolution, for costs.
        touched: Names of the tensors that some run has read.
        ran: The ops of the first run in their order.
        weights: Names of the tensors that a layer has read as its weights.
        activations: Every result that takes memory of its own, for costs.
        by_values: Whether the model needed values, so that what it did may depend on them.
    """

    labels: Labels
    dims: dict[str, Dims]
    ties: list[Tie]
    values: list[Used]
    mixed: list[tuple[Dim, str]]
    products: list[Product]
    touched: set[str]
    ran: list[Ran] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    activations: list[Activation] = field(default_factory=list)
    random: list[tuple[Dim, str]] = field(default_factory=list)
    multiples: list[tuple[Dim, int]] = field(default_factory=list)
    by_values: bool = False


def trace(
    model: nn.Module,
    runs: Sequence[Inputs],
    *,
    fixed_outputs: Callable[[Any], Sequence[Tensor]] = tensors_in,
    free_inputs: bool = False,
) -> Traced:
    """Run the model once for each of the example inputs and collect the facts in one set of labels.

    Args:
        model: The model, in the mode (training or evaluation) that is to be analysed.
        runs: Example inputs.
        fixed_outputs: Which tensors of the result are its interface, whose sizes stay.
        free_inputs: Whether positions of the inputs' last or channel dim may go.

    Returns:
        The facts.

    Raises:
        UnsupportedError: The model is wrapped, compiled or lazy.
        InvalidInputError: It is no module, example inputs are of none of the known forms, or the model returned no
            tensors.
    """
    _refuse(model)
    for inputs in runs:
        refuse_strange(inputs)
    tensors = named_tensors(model)

    def collected(outline: Outline | None) -> Traced:
        labels = Labels()
        dims = {name: tuple(labels.fresh_dim(size) for size in tensor.shape) for name, tensor in tensors.items()}
        traced = Traced(labels, dims, [], [], [], [], set())
        for inputs in runs:
            _run(model, inputs, tensors, traced, fixed_outputs, outline, free_inputs=free_inputs)
        traced.by_values = outline is None
        return traced

    traced = outlined_first(collected)
    _settle_unreached(model, tensors, traced)
    return traced


def _settle_unreached(model: nn.Module, tensors: Mapping[str, Tensor], traced: Traced) -> None:
    """What no input has reached is cut like its siblings that were; where there is none, it stays."""
    unreached = [name for name in tensors if name not in traced.touched]
    siblings = dict(reached_siblings(model, tensors, unreached, traced.touched))
    for name in unreached:
        for d, dim in enumerate(traced.dims[name]):
            if name in siblings:
                traced.labels.equal(dim, traced.dims[siblings[name]][d])
            else:
                traced.labels.block(dim, "no example input reached it")


def _refuse(model: nn.Module) -> None:
    """Refuse models that cannot be watched, or be changed afterwards: wrapped, compiled or not yet initialised ones.

    Raises:
        InvalidInputError: It is no module.
        UnsupportedError: It is one of these.
    """
    refuse_model(model)
    if "_orig_mod" in model._modules:
        raise UnsupportedError("a compiled model cannot be analysed.", fix="pass the model that was compiled")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise UnsupportedError(f"{name!r} is lazy: it has no shape yet.", fix="run one forward pass first")


def refuse_strange(inputs: object) -> None:
    """Refuse example inputs with which no model can be run.

    Raises:
        InvalidInputError: They are of none of the known forms.
    """
    if isinstance(inputs, Mapping) and not all(isinstance(name, str) for name in inputs):
        raise InvalidInputError(
            "a dict of keyword arguments has names for keys.", keys=list(inputs)[:3], fix="{'x': x}"
        )
    if isinstance(inputs, str) or not (isinstance(inputs, Tensor | Sequence | Mapping) or callable(inputs)):
        raise InvalidInputError(
            "example inputs are a tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs "
            "the model.",
            found=type(inputs).__name__,
            fix="(x, y) for model(x, y), {'x': x} for model(x=x), lambda model: model.encode(x) for anything else",
        )


def _no_tensors(model: nn.Module, result: object) -> InvalidInputError:
    """The error for a run from which no output is seen: all that only leads there would look as if nobody used it."""
    return InvalidInputError(
        f"{type(model).__name__} returned no tensors on the example inputs, so its outputs are unknown.",
        found=type(result).__name__,
        fix="interface=lambda result: [...] names the tensors in what is returned; a function that runs the model "
        "must return what it returns",
    )


def _shown(inputs: Inputs) -> str:
    """How the model was called on example inputs, for the note on its error."""
    if isinstance(inputs, Tensor):
        return f"model({_kind(inputs)}); give several arguments as a tuple, keyword arguments as a dict"
    if isinstance(inputs, Mapping):
        return f"model({', '.join(f'{name}={_kind(value)}' for name, value in inputs.items())})"
    if isinstance(inputs, Sequence):
        given = ", ".join(_kind(value) for value in inputs)
        return f"model({given}); a tuple or list is spread over the arguments, so wrap one that is itself an argument"
    return "the function that was given"


def _kind(value: object) -> str:
    """A tensor by its shape, anything else by its type."""
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _run(
    model: nn.Module,
    inputs: Inputs,
    tensors: Mapping[str, Tensor],
    traced: Traced,
    fixed_outputs: Callable[[Any], Sequence[Tensor]],
    outline: Outline | None,
    *,
    free_inputs: bool,
) -> None:
    """One run."""
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model))
        capture = Capture(traced.labels, rule_for, stack.enter_context(weights_restored(model, outline or in_earnest)))
        watch = Watch(capture, outline)
        for name, tensor in tensors.items():
            capture.enter_tensor(tensor, traced.dims[name], name=name, is_clean=isinstance(tensor, nn.Parameter))
        for tensor in tensors_in(inputs):
            if not capture.knows(tensor):
                make = traced.labels.fresh_dim if free_inputs else traced.labels.input_dim
                dims = tuple(make(size) for size in tensor.shape)
                capture.enter_tensor(tensor, dims, is_state=False, is_clean=False)
        stack.enter_context(free_heads(model))
        stack.enter_context(AttributeSizes(model, watch.noted))
        stack.enter_context(watch)
        stack.enter_context(capture)
        try:
            result = call_with(model, inputs)
        except Exception as error:
            error.add_note(
                f"raised by {type(model).__name__} as secateur ran it on the example inputs: {_shown(inputs)}"
            )
            raise
    results = list(fixed_outputs(result))
    if not results and not tensors_in(result):
        raise _no_tensors(model, result)
    for tensor in results:
        for dim in capture.dims(tensor):
            traced.labels.block(dim, "it is an output of the model")
    capture.finish(results)
    traced.ties += watch.ties
    traced.values += watch.values
    traced.mixed += (*capture.mixed, *capture.spoiled)
    traced.random += capture.random
    traced.multiples += capture.multiples
    traced.products += capture.products
    traced.activations += capture.activations
    traced.ran = traced.ran or capture.ran
    traced.weights |= {name for name, tensor in tensors.items() if capture.is_weight(tensor)}
    traced.touched |= {name for name, tensor in tensors.items() if capture.was_read(tensor)}
