"""The verb: choose the weights that go, and hold them at zero while training goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateur import patterns, scores
from secateur._errors import InfeasibleError, InvalidInputError, ShapeError
from secateur._names import Selector
from secateur._units import Units, check_scores, lowest
from secateur.allocation import Allocation, uniform
from secateur.masks.collection import Masks
from secateur.masks.eligible import eligible_names
from secateur.patterns import Pattern
from secateur.scores import Score
from secateur.surgery.refusals import refuse_call, refuse_model

__all__ = ["prune_"]


def prune_(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    sparsity: float,
    score: Score | Mapping[str, Tensor] = scores.magnitude,
    allocation: Allocation = uniform,
    pattern: Pattern = patterns.Unstructured(),  # noqa: B008 - a frozen value
    include: Iterable[Selector] | Selector | None = None,
    exclude: Iterable[Selector] | Selector | None = None,
    lean: bool = False,
) -> Masks:
    """Set the least important weights to zero and keep them there through every optimizer step.

    Args:
        model: The model. Names of parameters, keys of its state_dict and the parameters themselves stay the same.
        optimizer: The optimizer that trains it, or several. May be left out, or made later: whichever optimizer steps
            a masked parameter keeps its zeros. Naming it here checks that it holds them and clears its momenta now.
        sparsity: Fraction of zeros in [0, 1) among all entries of the chosen parameters, those that are masked already
            included; the count is exact, ties go by position.
        score: What a weight is worth; higher = kept. A function of the weights by name, or a dict of scores by name.
        allocation: How the zeros are shared out among the parameters.
        pattern: Which shapes of zeros are allowed.
        include: Globs over dotted names, or module types; all weights if left out (no biases, no norms).
        exclude: Globs or module types that are left out.
        lean: Hold 0.125 bytes a weight instead of that and a word of the weight's own width. Slower.

    Returns:
        The masks of the model.

    Changes:
        Weights, gradients and optimizer state at masked places. A second call adds zeros to the first one's.

    Keeps:
        Identity, names, hooks, everything at kept places.

    Raises:
        InvalidInputError: `sparsity` outside [0, 1), nan scores, a selector that matches nothing, inference mode.
        ShapeError: Scores of another shape, or a pattern that does not fit.
        InfeasibleError: The allocation leaves a parameter fewer zeros than it has already, or no weight at all.
        HolderError: The optimizer does not hold the parameters.
        UnsupportedError: A lazy, sparse, quantized, computed or distributed parameter. Nothing is changed then.

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        >>> prune_(model, optimizer, sparsity=0.9)
        Masks: 198 of 220 weights are zero (90.00 %) in 2 tensors
          0.weight  (10, 20)  180 zeros  90.00 %
          2.weight   (2, 10)   18 zeros  90.00 %
          not masked: 0.bias, 2.bias
    """
    refuse_call()
    refuse_model(model)
    if not isinstance(sparsity, int | float) or not 0.0 <= sparsity < 1.0:
        raise InvalidInputError(
            "sparsity is the fraction of zeros and must be in [0, 1).",
            sparsity=sparsity,
            fix="90 % zeros: sparsity=0.9",
        )
    masks = Masks(model)
    parameters = dict(masks.model.named_parameters())
    weights = {name: parameters[name].detach() for name in eligible_names(masks.model, include, exclude)}
    kept = {name: masks.get(name) for name in weights}
    units = {name: _units(values, kept[name], pattern) for name, values in _scores(score, weights).items()}
    counts = allocation(units, float(sparsity))
    new = {}
    for name, unit in units.items():
        _check_grows(name, unit, counts[name])
        new[name] = pattern.expand(lowest(unit.scores, counts[name], name=name), unit.shape)
        before = kept[name]
        if before is not None:
            new[name] &= before
    masks._put(new, list([optimizer] if isinstance(optimizer, Optimizer) else optimizer or []), lean=lean)
    return masks


def _scores(score: Score | Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores of the weights, in their order, checked."""
    given = score if isinstance(score, Mapping) else score(weights)
    missing = [name for name in weights if name not in given]
    if missing:
        raise InvalidInputError(
            f"there is no score for {missing[0]!r}.",
            scores_for=", ".join(given) or "none",
            fix="score every parameter, or choose those that have scores with include=[…]",
        )
    found = {name: given[name].detach() for name in weights}
    for name, values in found.items():
        if values.shape != weights[name].shape:
            raise ShapeError(
                f"the scores of {name!r} have another shape than the weight.",
                scores=tuple(values.shape),
                weight=tuple(weights[name].shape),
            )
    check_scores(found)
    return {name: values if values.is_floating_point() else values.float() for name, values in found.items()}


def _units(values: Tensor, kept: Tensor | None, pattern: Pattern) -> Units:
    """Scores of the units, those that are masked already at minus infinity."""
    size = pattern.unit_size(values.shape)
    if kept is None:
        return Units(pattern.reduce(values), values.shape, size)
    reduced = pattern.reduce(values.masked_fill(~kept, 0.0))
    gone = pattern.reduce(kept.float()) == 0
    return Units(reduced.masked_fill(gone, -torch.inf), values.shape, size)


def _check_grows(name: str, units: Units, count: int) -> None:
    """Refuse to leave masked units behind: zeros stay zero."""
    gone = int((units.scores == -torch.inf).count_nonzero())
    if count < gone:
        raise InfeasibleError(
            f"{name!r} has more masked units than it would get: zeros stay zero in a further call.",
            masked=f"{gone} of {units.num_units}",
            asked=count,
            fix="a higher sparsity, or masks.remove() first",
        )
