"""From scores to masks, before anything is changed: units are rated, the allocation says how many go, the lowest go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Self

import torch
from torch import Tensor

from secateur._errors import InfeasibleError, InvalidInputError, ShapeError
from secateur._units import Units, check_scores
from secateur.allocation import Allocation, PerTensor
from secateur.allocation._sparsity import check_sparsity
from secateur.patterns import Pattern
from secateur.scores import Score

__all__ = ["chosen_masks", "scores_of", "sparsity_of"]


def sparsity_of(sparsity: float | None, pattern: Pattern, allocation: Allocation) -> float | None:
    """The sparsity to share out: what is asked for, or what the pattern fixes; None if the allocation has its own.

    Raises:
        InvalidInputError: It is no number in [0, 1), or the pattern fixes another; None where one is needed.
    """
    fixed = pattern.sparsity
    if sparsity is None and (fixed is not None or isinstance(allocation, PerTensor)):
        return fixed
    asked = check_sparsity(sparsity)
    if fixed is not None and abs(asked - fixed) > 1e-6:
        raise InvalidInputError(
            f"{pattern!r} fixes the sparsity: {fixed:g} in every tensor.",
            asked=asked,
            fix="leave sparsity= out, or choose a pattern of that sparsity",
        )
    return asked if fixed is None else fixed


def scores_of(
    score: Score | Mapping[str, Tensor], weights: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]
) -> dict[str, Tensor]:
    """Scores of weights, checked.

    Args:
        score: A function of the weights by name, or scores by name.
        weights: The weights by first name.
        names: All names of each weight; scores may have any of them.

    Returns:
        Scores in the order of the weights, real floating-point, on their devices.

    Raises:
        InvalidInputError: A weight has no score, or one that cannot be ranked.
        ShapeError: A score has another shape than its weight.
    """
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


def _checked_score(name: str, score: object, weight: Tensor) -> Tensor:
    """One weight's scores as real floating-point numbers, if they fit the weight."""
    if not isinstance(score, Tensor):
        raise InvalidInputError(
            f"the scores of {name!r} are no tensor.", found=type(score).__name__, fix="torch.as_tensor(scores)"
        )
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
    score = score.detach().to_dense().to(weight.device)
    if not score.is_floating_point():
        return score.to(torch.float64)
    return score if score.itemsize > 1 else score.float()  # torch cannot compare floats of eight bits


def chosen_masks(
    scores: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
    *,
    pattern: Pattern,
    allocation: Allocation,
    sparsity: float | None,
) -> dict[str, Tensor]:
    """Masks of exactly so many zeros; zeros that are there stay.

    Args:
        scores: What `scores_of` returned, for weights that the pattern fits.
        present: Masks that some of the weights have, bool, True = kept.
        pattern: Which shapes of zeros are allowed.
        allocation: How the zeros are shared out.
        sparsity: What `sparsity_of` returned.

    Returns:
        Bool masks by the names of the scores, True = kept.

    Raises:
        InvalidInputError: Scores of units are NaN, or the allocation answers with something else than counts.
        InfeasibleError: A weight would get fewer zeros than it has, or a number that the pattern does not allow.
    """
    candidates = {name: _Candidate.of(name, each, present.get(name), pattern) for name, each in scores.items()}
    units = {name: each.units for name, each in candidates.items()}
    # only an allocation that has sparsities of its own is ever asked without one
    counts: object = allocation(units, sparsity)  # type: ignore[arg-type]
    if not isinstance(counts, Mapping):
        raise InvalidInputError(
            "an allocation takes units by name and returns, by name, how many of them go.",
            returned=type(counts).__name__,
            fix="lambda units, sparsity: {name: each.num_units // 2 for name, each in units.items()}",
        )
    return {name: each.without_lowest(counts, pattern) for name, each in candidates.items()}


@dataclass(frozen=True)
class _Candidate:
    """A weight whose lowest units will go.

    Args:
        name: Its dotted name.
        units: Scores of its units; those that are masked already have minus infinity.
        kept: The mask that it has, None if it has none.
        gone: Units that are masked already, bool; None if it has no mask.
    """

    name: str
    units: Units
    kept: Tensor | None = None
    gone: Tensor | None = None

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
        return cls(name, Units(scores, score.shape, size), kept, gone)

    def without_lowest(self, counts: Mapping[str, int], pattern: Pattern) -> Tensor:
        """The mask without as many of the lowest units as the allocation says; what was zero before stays so."""
        count = counts.get(self.name)
        if not isinstance(count, Integral) or not 0 <= count <= self.units.num_units:
            raise InvalidInputError(
                f"the allocation gives no number of units to remove from {self.name!r}.",
                count=count,
                units=self.units.num_units,
            )
        try:
            stay = pattern.choose(self.units.scores, int(count))
        except InvalidInputError as error:
            raise type(error)(f"cannot prune {self.name!r}: {error.problem}", fix=error.fix, **error.facts) from error
        if self.gone is not None and bool((stay & self.gone).any()):
            raise InfeasibleError(
                f"{self.name!r} would keep units that are masked already, and zeros stay zero in a further call.",
                masked=f"{int(self.gone.count_nonzero())} of {self.units.num_units}",
                asked=count,
                masked_but_kept=int((stay & self.gone).count_nonzero()),
                pattern=pattern,
                fix="masks.remove() first" + (", or a higher sparsity" if pattern.sparsity is None else ""),
            )
        mask = pattern.expand(stay, self.units.shape)
        return mask if self.kept is None else mask & self.kept
