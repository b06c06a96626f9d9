"""The verb: choose the weights that go, and hold them at zero while training goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from secateur import patterns, scores
from secateur._errors import InfeasibleError, InvalidInputError, ShapeError
from secateur._names import tied_names
from secateur._units import Units, check_scores, lowest
from secateur._wrappers import refuse_model
from secateur.allocation import ALLOCATIONS, Allocation, uniform
from secateur.allocation._sparsity import check_sparsity
from secateur.masks.collection import Masks
from secateur.masks.commit import Optimizers, listed, put_
from secateur.masks.eligible import Selectors, eligible_names, find
from secateur.masks.slots import masked_parameters
from secateur.patterns import Pattern
from secateur.scores import Score
from secateur.surgery.refusals import refuse_call

__all__ = ["prune_"]


def prune_(
    model: nn.Module,
    optimizer: Optimizers = None,
    *,
    sparsity: float,
    score: Score | Mapping[str, Tensor] = scores.magnitude,
    allocation: Allocation = uniform,
    pattern: Pattern = patterns.Unstructured(),  # noqa: B008 - a frozen value
    include: Selectors = None,
    exclude: Selectors = None,
    lean: bool = False,
) -> Masks:
    """Set the least important weights to zero and keep them there through every optimizer step.

    Masks make a model neither smaller nor faster by themselves, and cost a few per cent of a training step. On a CPU
    ``fused=True`` (SGD, Adam, AdamW, Adagrad) gains many times that, masks or not.

    Args:
        model: The model. Names of parameters, keys of its state_dict and the parameters themselves stay the same.
        optimizer: The optimizer that trains it, or several. May be left out, or made later: whichever optimizer steps
            a masked parameter keeps its zeros. Naming it here checks that it holds them and clears its momenta now.
        sparsity: Fraction of zeros in [0, 1) among all units of the chosen parameters (entries, or slices under a
            `Channel` pattern), those that are masked already included; the count is exact, ties go by position.
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
          2.weight  (2, 10)    18 zeros  90.00 %
          not masked: 0.bias, 2.bias
    """
    refuse_call()
    refuse_model(model)
    check_sparsity(sparsity)
    _check_choices(score, allocation, pattern)
    optimizers = listed(optimizer)
    masks = Masks(model)
    weights = {n: find(masks.model, n).detach() for n in eligible_names(masks.model, include, exclude)}
    present = {name: mask.bits.dense for name, mask in masked_parameters(masks.model).items()}
    candidates = {
        name: _Candidate.of(name, values, present.get(name), pattern)
        for name, values in _scores(score, weights, tied_names(masks.model)).items()
    }
    counts = allocation({name: each.units for name, each in candidates.items()}, float(sparsity))
    chosen = {name: each.without_lowest(counts, pattern) for name, each in candidates.items()}
    put_(masks.model, chosen, optimizers, lean=lean)
    return masks


def _check_choices(score: object, allocation: object, pattern: object) -> None:
    """Refuse a score, an allocation or a pattern that is none, such as its name."""
    if not callable(score) and not isinstance(score, Mapping):
        raise InvalidInputError(
            "score= is a function of the weights by name, or a dict of scores by name.",
            score=repr(score)[:60],
            there_are=", ".join(f"scores.{name}" for name in scores.SCORES),
        )
    if not callable(allocation):
        raise InvalidInputError(
            "allocation= is a function.",
            allocation=repr(allocation)[:60],
            there_are=", ".join(f"allocation.{each.__name__}" for each in ALLOCATIONS.values()),
        )
    if not hasattr(pattern, "reduce") or isinstance(pattern, type):
        raise InvalidInputError(
            "pattern= is a pattern object.",
            pattern=repr(pattern)[:60],
            there_are="patterns.Unstructured(), patterns.Channel(dim=0)",
        )


def _scores(
    score: Score | Mapping[str, Tensor], weights: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Scores of the weights, in their order, checked; `names` are all names of each weight."""
    given = score if isinstance(score, Mapping) else score(weights)
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            "a score takes weights by name and returns scores by name.",
            returned=type(given).__name__,
            fix="lambda weights: {name: w.abs() for name, w in weights.items()}",
        )
    found = {}
    for name, weight in weights.items():
        known_as = next((other for other in names[name] if other in given), None)
        if known_as is None:
            raise InvalidInputError(
                f"there is no score for {name!r}.",
                scores_for=", ".join(list(given)[:8]) or "none",
                fix="score every parameter, or choose those that have scores with include=[…]",
            )
        found[name] = _checked_score(name, given[known_as], weight)
    check_scores(found)
    return found


def _checked_score(name: str, score: Tensor, weight: Tensor) -> Tensor:
    """One weight's scores as real floating-point numbers, if they fit the weight."""
    if score.shape != weight.shape:
        raise ShapeError(
            f"the scores of {name!r} have another shape than the weight.",
            scores=tuple(score.shape),
            weight=tuple(weight.shape),
        )
    if score.is_complex() or score.is_meta:
        raise InvalidInputError(
            f"the scores of {name!r} cannot be ranked: they must be real numbers with a value.",
            dtype=score.dtype,
            device=score.device,
        )
    score = score.detach().to(weight.device)
    return score if score.is_floating_point() else score.to(torch.float64)


@dataclass(frozen=True)
class _Candidate:
    """A weight whose lowest units will go.

    Args:
        name: Its dotted name.
        units: Scores of its units; those that are masked already have minus infinity.
        kept: The mask that it has, None if it has none.
        num_gone: Units that are masked already.
    """

    name: str
    units: Units
    kept: Tensor | None = None
    num_gone: int = 0

    @classmethod
    def of(cls, name: str, score: Tensor, kept: Tensor | None, pattern: Pattern) -> Self:
        """Rate the units of one weight."""
        try:
            size = pattern.unit_size(score.shape)
            if kept is None:
                return cls(name, Units(pattern.reduce(score), score.shape, size))
            scores = pattern.reduce(score.masked_fill(~kept, 0.0))
            gone = pattern.reduce(kept.float()) == 0
        except ShapeError as error:
            raise ShapeError(f"cannot prune {name!r}: {error.problem}", fix=error.fix, **error.facts) from error
        scores = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill_(gone, -torch.inf)
        return cls(name, Units(scores, score.shape, size), kept, int(gone.count_nonzero()))

    def without_lowest(self, counts: Mapping[str, int], pattern: Pattern) -> Tensor:
        """The mask without as many of the lowest units as the allocation says; what was zero before stays so."""
        count = counts.get(self.name)
        if not isinstance(count, int) or not 0 <= count <= self.units.num_units:
            raise InvalidInputError(
                f"the allocation gives no number of units to remove from {self.name!r}.",
                count=count,
                units=self.units.num_units,
            )
        if count < self.num_gone:
            raise InfeasibleError(
                f"{self.name!r} has more masked units than it would get, and zeros stay zero in a further call.",
                masked=f"{self.num_gone} of {self.units.num_units}",
                asked=count,
                fix="a higher sparsity, or masks.remove() first",
            )
        mask = pattern.expand(lowest(self.units.scores, count, name=self.name), self.units.shape)
        return mask if self.kept is None else mask & self.kept
