"""The verb: choose the weights that go, and hold them at zero while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from torch import Tensor, nn

from secateur import patterns, scores
from secateur._errors import InvalidInputError, ShapeError
from secateur._names import tied_names
from secateur._wrappers import refuse_model
from secateur.allocation import ALLOCATIONS, Allocation, PerTensor, uniform
from secateur.masks.choosing import chosen_masks, scores_of, sparsity_of
from secateur.masks.collection import Masks
from secateur.masks.commit import Optimizers, listed, put_
from secateur.masks.eligible import Selectors, eligible_names, find, left_out
from secateur.masks.slots import masked_parameters
from secateur.patterns import PATTERNS, Pattern
from secateur.scores import Score
from secateur.scores._calls import how_to_call
from secateur.surgery.refusals import refuse_call

__all__ = ["prune_"]


def prune_(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    sparsity: float | None = None,
    score: Score | Mapping[str, Tensor] = scores.magnitude,
    allocation: Allocation | Mapping[str, float] = uniform,
    pattern: Pattern = patterns.Unstructured(),  # noqa: B008 - a frozen value
    include: Selectors = None,
    exclude: Selectors = None,
    strict: bool = False,
    lean: bool = False,
) -> Masks:
    """Set the least important weights to zero and keep them there through every optimizer step.

    Masks make a model neither smaller nor faster by themselves, and cost a few per cent of a training step. On a CPU
    ``fused=True`` (SGD, Adam, AdamW, Adagrad) gains many times that, masks or not.

    Args:
        model: The model. Names of parameters, keys of its state_dict and the parameters themselves stay the same.
        optimizer: The optimizer that trains it, or several. May be left out, or made later: whichever optimizer steps
            a masked parameter keeps its zeros. Naming it here checks that it holds them and clears its momenta now.
        sparsity: Fraction of zeros in [0, 1) among all units (entries, or what the pattern makes of them) of the chosen
            parameters that the pattern fits, those that are masked already included; the count is exact, ties go by
            position. May be left out where the pattern (N:M) or a dictionary of sparsities leaves nothing to choose.
        score: What a weight is worth; higher = kept. A function of the weights by name, or a dict of scores by name.
        allocation: How the zeros are shared out among the parameters; or a dict of sparsities by name or glob, see
            `secateur.allocation.PerTensor`.
        pattern: Which shapes of zeros are allowed. Parameters that it does not fit are skipped, and listed with the
            reason in what is returned.
        include: Globs over dotted names, or module types; all weights if left out (no biases, no norms).
        exclude: Globs or module types that are left out.
        strict: Refuse, instead of skipping, parameters that the pattern does not fit, and those that it cuts into units
            of which some are smaller.
        lean: Hold 0.125 bytes a weight instead of that and a word of the weight's own width. Slower. With the native
            kernels this makes no difference: masks on the CPU are held so in any case, and cost less.

    Returns:
        The masks of the model. What was skipped counts in their overall sparsity, as parameters without zeros.

    Changes:
        Weights, gradients and optimizer state at masked places. A second call adds zeros to the first one's.

    Keeps:
        Identity, names, hooks, everything at kept places.

    Raises:
        InvalidInputError: `sparsity` outside [0, 1), or another than the pattern's; nan scores, a selector or a key
            that matches nothing, inference mode.
        ShapeError: Scores of another shape, or a pattern that fits none of the parameters; with `strict`, one of them.
        InfeasibleError: The allocation leaves a parameter fewer zeros than it has already, or no weight at all, or a
            number that the pattern does not allow.
        HolderError: The optimizer does not hold the parameters.
        UnsupportedError: A lazy, sparse, quantized, computed or distributed parameter. Nothing is changed then.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        >>> prune_(model, optimizer, sparsity=0.9)
        Masks: 198 of 220 weights are zero (90.00 %) in 2 tensors
          0.weight  (10, 20)  180 zeros  90.00 %
          2.weight  (2, 10)    18 zeros  90.00 %
          not masked: 0.bias, 2.bias
    """
    refuse_call()
    refuse_model(model)
    allocation = PerTensor(allocation) if isinstance(allocation, Mapping) else allocation
    _check_choices(score, allocation, pattern)
    sparsity = sparsity_of(sparsity, pattern, allocation)
    optimizers = listed(optimizer)
    masks = Masks(model)
    weights = {n: find(masks.model, n).detach() for n in eligible_names(masks.model, include, exclude)}
    masks.skipped, masks.remainders = _misfits(weights, pattern, strict=strict)
    weights = {name: weight for name, weight in weights.items() if name not in masks.skipped}
    masks.skipped |= left_out(masks.model, exclude) if include is None else {}
    chosen = chosen_masks(
        scores_of(score, weights, tied_names(masks.model)),
        {name: mask.bits.dense for name, mask in masked_parameters(masks.model).items()},
        pattern=pattern,
        allocation=allocation,
        sparsity=sparsity,
    )
    put_(masks.model, chosen, optimizers, lean=lean)
    return masks


def _check_choices(score: object, allocation: object, pattern: object) -> None:
    """Refuse a score, an allocation or a pattern that is none, such as its name."""
    line = how_to_call(score)
    if line:
        raise InvalidInputError("score= is a score that needs more than the weights.", fix=f"call it first: {line}")
    if not (_takes_weights(score) if callable(score) else isinstance(score, Mapping)):
        raise InvalidInputError(
            "score= is a function of the weights by name, or a dict of scores by name.",
            score=repr(score)[:60],
            there_are=", ".join(f"scores.{name}" for name in scores.SCORES),
        )
    if not callable(allocation) or isinstance(allocation, type):
        raise InvalidInputError(
            "allocation= is a function, or a dict of sparsities by name.",
            allocation=repr(allocation)[:60],
            there_are=", ".join(f"allocation.{name}" for name in ALLOCATIONS),
        )
    if not isinstance(pattern, Pattern):
        raise InvalidInputError(
            "pattern= is a pattern object.",
            pattern=repr(pattern)[:60],
            there_are=", ".join(f"patterns.{each!r}" for each in PATTERNS.values()),
        )


def _takes_weights(score: Callable[..., Any]) -> bool:
    """Whether a function can be called with the weights alone, as far as its signature tells."""
    try:
        arguments = signature(score)
    except (TypeError, ValueError):
        return True
    try:
        arguments.bind({})
    except TypeError:
        return False
    return True


def _misfits(weights: Mapping[str, Tensor], pattern: Pattern, *, strict: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Why some weights cannot have the pattern, and what is smaller in others; refused if it has to be."""
    skipped = {name: why for name, weight in weights.items() if (why := pattern.misfit(weight.shape))}
    fitting = {name: weight for name, weight in weights.items() if name not in skipped}
    uneven = {name: what for name, weight in fitting.items() if (what := pattern.remainder(weight.shape))}
    refused = skipped | uneven if strict else skipped if not fitting else {}
    if refused:
        name, why = next(iter(refused.items()))
        raise ShapeError(
            f"cannot prune {name!r}: {pattern!r} does not fit: {why}.",
            shape=tuple(weights[name].shape),
            and_others=", ".join(list(refused)[1:9]) or "none",
            fix="exclude=[…] leaves them out" + (", strict=False skips them and says so" if strict else ""),
        )
    return skipped, uneven
