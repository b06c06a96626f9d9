"""`compress`: a masked model made smaller and faster for inference, by what is measured on this machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateur import _native
from secateur._errors import InvalidInputError, UnsupportedError
from secateur._passes import Inputs, call_with, undisturbed
from secateur._progress import task
from secateur.graph.trace import refuse_strange
from secateur.runtime.choosing import Choice
from secateur.runtime.comparing import difference, fails_at_larger_images, own, run_seconds
from secateur.runtime.compressed import Compressed
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS
from secateur.runtime.origins import Origin
from secateur.runtime.preparing import plain_copy, without_empty_units
from secateur.runtime.profile_sizes import bytes_in
from secateur.runtime.recipe import CHANNELS_LAST, Recipe
from secateur.runtime.table import CompressionReport, shown_bytes
from secateur.runtime.trial import Trial

__all__ = ["compress"]


@task("compressing")
@torch.inference_mode(mode=False)
def compress(
    model: nn.Module,
    example_inputs: Inputs,
    masks: Mapping[str, Tensor] | None = None,
    *,
    more_inputs: Sequence[Inputs] = (),
    values: torch.dtype = torch.float32,
    margin: float = 0.05,
    formats: Collection[str] | None = None,
) -> Compressed:
    """Make a model with many zeros smaller and faster, for inference on this machine's CPU.

    Units that are empty are removed, BatchNorm is folded into the layer before it, and each layer gets the format that
    is fastest with inputs like the example's, by the clock; a layer, or the whole model, that nothing makes faster
    stays dense. A model without zeros, a shrunk one say, gains by a format that is dense itself. The outputs are those
    of the masked dense model to rounding, which is checked on the example inputs.

    Args:
        model: A trained model on the CPU. It stays as it is.
        example_inputs: A tensor, a tuple of arguments, a dict of keyword arguments, or a function that runs the model.
            Formats are chosen for its batch size, at the number of threads that torch uses now.
        masks: Parameter name -> bool mask, True = kept; where it is False the weight counts as zero. Masks of `prune_`
            are in the weights already.
        more_inputs: Further example inputs; a format then has to be the fastest over all of them together.
        values: Dtype that values are kept in, float32 or bfloat16; arithmetic is in float32.
        margin: By which part of the dense time a format has to be faster, and the whole model if it takes more memory
            than the dense one. A negative one takes what is slower by that part, also of the whole model: ``-1`` up to
            twice the time, for the sake of its size. ``"prepacked"``, which holds a dense weight twice, is then left
            out.
        formats: Names of the formats to try, of `secateur.runtime.LINEAR_FORMATS` and `CONV_FORMATS`, or ``"channels
            last"``, a dense convolution in that memory format; all by default.

    Returns:
        The compressed model, whose ``report`` is a table that prints itself.

    Raises:
        InvalidInputError: It is no model, not on the CPU, or has no values; or a mask, a format or a dtype is none.
        ShapeError: A mask of another shape than its parameter.
        UnsupportedError: Parameters that a wrapper holds in forms of its own, or a model that cannot be copied.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        >>> masks = {"0.weight": torch.rand(256, 64) > 0.9}
        >>> fast = compress(model, torch.randn(1, 64), masks)
        >>> print(fast.report)  # doctest: +SKIP
        >>> fast(torch.randn(5, 64)).shape
        torch.Size([5, 10])
    """
    _check(values, margin, formats)
    if not isinstance(more_inputs, list | tuple):
        raise InvalidInputError("more_inputs is a list of example inputs.", found=type(more_inputs).__name__, fix="[x]")
    for inputs in (example_inputs, *more_inputs):
        refuse_strange(inputs)
    dense = plain_copy(model, masks)
    examples = [own(inputs) for inputs in (example_inputs, *more_inputs)]
    for inputs in examples:
        _run_once(dense, inputs)
    smaller, note = without_empty_units(dense, examples[0])
    tries = [
        _try(dense, plain, examples, values=values, margin=margin, allowed=formats)
        for plain in (dense, smaller)
        if plain is not None
    ]
    best = min(tries, key=lambda each: each.rank(_tolerance(dense, values), margin))
    return Compressed(best.fast, best.recipe, Origin.of(best.plain, best.recipe.norms), best.report(dense, note))


@dataclass(frozen=True)
class _Try:
    """A compressed model, and what was measured of it beside the dense one."""

    plain: nn.Module
    trial: Trial
    choices: Mapping[str, Choice]
    recipe: Recipe
    fast: nn.Module
    error: float
    seconds: Mapping[str, float]

    def share(self, margin: float) -> float:
        """Share of the dense time; one that takes more memory has to be faster by the margin to count as equal."""
        is_larger = bytes_in(self.fast) > bytes_in(self.plain)
        return self.seconds["fast"] / self.seconds["dense"] / (1 - (max(margin, 0) if is_larger else 0))

    def rank(self, tolerance: float, margin: float) -> tuple[bool, float]:
        """What is least for the best try: one that is right, and takes the least of the dense time."""
        return not self.error <= tolerance, self.share(margin)

    def report(self, dense: nn.Module, note: str) -> CompressionReport:
        """The table."""
        if self.plain is dense and note.startswith("empty units removed"):
            note = "empty units stay: the model is faster with them"
        norms = f"BatchNorm folded into {len(self.recipe.norms)} layers"
        lines = tuple(self.trial.lines(self.choices, self.fast))
        rest = bytes_in(self.fast) - sum(line.bytes for line in lines)
        others = f"not in the table: {shown_bytes(rest)} of embeddings, norms, biases and other tensors, as they were"
        return CompressionReport(
            layers=lines,
            dense_seconds=self.seconds["dense"],
            seconds=self.seconds["fast"],
            dense_bytes=bytes_in(dense),
            bytes=bytes_in(self.fast),
            error=self.error,
            threads=torch.get_num_threads(),
            notes=(*([others] if rest > 0 else []), note, *([norms] if self.recipe.norms else []), _native.status()),
        )


def _try(
    dense: nn.Module,
    plain: nn.Module,
    examples: Sequence[Inputs],
    *,
    values: torch.dtype,
    margin: float,
    allowed: Collection[str] | None,
) -> _Try:
    """Compress a plain model, with or without its empty units; all layers stay dense if that is better."""
    trial = Trial(plain, examples)
    choices = trial.choices(values=values, margin=margin, allowed=allowed)
    tried = _measured(dense, plain, examples, trial, choices, values)
    if tried.seconds["fast"] == math.inf:
        choices = trial.channels_first(choices, margin)
        tried = _measured(dense, plain, examples, trial, choices, values)
    why = _failure(tried, _tolerance(dense, values), margin)
    stay = {path: replace(choice, format="dense", why=choice.why or why) for path, choice in choices.items()}
    if why and tried.recipe.layers:
        tried = _measured(dense, plain, examples, trial, stay, values)
    if not tried.error <= _tolerance(dense, values) and tried.recipe.norms:
        tried = _measured(dense, plain, examples, Trial(plain, examples, folds=False), stay, values)
    others = [
        _measured(dense, plain, examples, tried.trial, each, values) for each in tried.trial.in_one_form(tried.choices)
    ]
    return min((tried, *others), key=lambda each: each.rank(_tolerance(dense, values), margin))


@task("measuring the whole model")
def _measured(
    dense: nn.Module,
    plain: nn.Module,
    examples: Sequence[Inputs],
    trial: Trial,
    choices: Mapping[str, Choice],
    values: torch.dtype,
) -> _Try:
    """Make what was chosen and measure it."""
    recipe = trial.recipe(choices, values)
    fast = trial.made(recipe)
    try:
        error, seconds = difference(dense, fast, examples), run_seconds(dense, fast, examples)
        if trial.has_channels_last(recipe) and fails_at_larger_images(dense, fast, examples[0]):
            error, seconds = math.inf, {"dense": 1.0, "fast": math.inf}
    except (UnsupportedError, RuntimeError):  # it differentiates inside its forward; it views images with channels last
        error, seconds = math.inf, {"dense": 1.0, "fast": math.inf}
    return _Try(plain, trial, choices, recipe, fast, error, seconds)


def _check(values: torch.dtype, margin: float, formats: Collection[str] | None) -> None:
    """Refuse options that mean nothing."""
    if values not in (torch.float32, torch.bfloat16):
        raise InvalidInputError("values are kept in float32 or bfloat16.", values=values)
    if not isinstance(margin, int | float) or not margin < 1:
        raise InvalidInputError("margin is a part of the dense time, less than 1.", margin=margin)
    known = {*LINEAR_FORMATS, *CONV_FORMATS, CHANNELS_LAST}
    is_list = (
        isinstance(formats, Collection) and not isinstance(formats, str) and all(isinstance(n, str) for n in formats)
    )
    if formats is not None and not (is_list and set(formats) <= known):
        raise InvalidInputError(
            "formats is a list of names of formats.", formats=formats, known=", ".join(sorted(known)), fix='["csr"]'
        )


def _tolerance(model: nn.Module, values: torch.dtype) -> float:
    """How far outputs may be apart: a model or values in 16 bits round more."""
    coarse = values != torch.float32 or any(p.is_floating_point() and p.itemsize < 4 for p in model.parameters())
    return 3e-2 if coarse else 1e-4


def _run_once(model: nn.Module, inputs: Inputs) -> None:
    """See that the model runs on example inputs; what it raises otherwise comes through, with a note."""
    with undisturbed(model):
        try:
            call_with(model, own(inputs))
        except Exception as error:  # whatever the model raises; it goes on with a note
            error.add_note("raised as secateur.compress ran the model on the example inputs")
            raise


def _failure(tried: _Try, tolerance: float, margin: float) -> str:
    """Why all layers go back to dense."""
    if tried.seconds["fast"] == math.inf:
        return "packed layers cannot do what the model does"
    if not tried.error <= tolerance:
        return f"packed layers change the model's outputs by {tried.error:.1e}"
    if tried.share(margin) > 1 - min(margin, 0):
        return "packed layers do not make the whole model faster"
    return ""
