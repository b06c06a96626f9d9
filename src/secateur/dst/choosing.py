"""From scores to new masks, with exact counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from secateur import scores
from secateur._errors import InvalidInputError, ShapeError
from secateur._units import Units
from secateur.allocation import Allocation
from secateur.dst.exchange import dropped, grown
from secateur.dst.moment import Moment, Rating
from secateur.dst.ratings import gradient
from secateur.patterns import Pattern, Unstructured

__all__ = ["Chooser", "rising"]

_SIZES: tuple[tuple[Rating, Callable[[Moment], Mapping[str, Tensor]]], ...] = (
    (scores.magnitude, lambda moment: moment),
    (gradient, lambda moment: moment.arrived),
)
"""Ratings that are absolute values, and of what. Where every entry is a unit they are compared as they are read:
absolute values of their own would take longer to make than the choice takes."""


class _Rated(NamedTuple):
    """Scores of units; `sizes`: their absolute values are meant."""

    scores: Tensor
    sizes: bool

    @property
    def values(self) -> Tensor:
        """The scores that are meant."""
        return self.scores.abs() if self.sizes else self.scores


@dataclass(frozen=True)
class Chooser:
    """How the next masks are chosen.

    Args:
        drop: Rates kept weights; the lowest go.
        grow: Rates masked weights; the highest come. None if none should.
        allocation: Shares a risen sparsity out.
        pattern: What units are.
    """

    drop: Rating
    grow: Rating | None
    allocation: Allocation
    pattern: Pattern

    def choose(
        self,
        moment: Moment,
        kept: Mapping[str, Tensor],
        sparsity: float | None,
        fraction: float,
        *,
        frozen: Collection[str] = (),
    ) -> dict[str, Tensor]:
        """Choose masks.

        Args:
            moment: Weights, gradients and the step.
            kept: The present masks, bool, by the same names.
            sparsity: Fraction of zeros from now on; None if every weight keeps as many as it has.
            fraction: Fraction of what each weight keeps that is exchanged, rounded; no more than it has masked units.
            frozen: Names of weights in which nothing is exchanged: what is grown would stay 0.

        Returns:
            The masks of those weights that change, bool. Grown units were masked before; a weight that a rating has no
            scores for is left out.

        Raises:
            InvalidInputError: A score is NaN, no tensor, or of another shape.
        """
        units = {name: self._units(mask) for name, mask in kept.items()}
        drop = self._rated(self.drop, moment)
        counts = {name: int(each.count_nonzero()) for name, each in units.items()}
        goals = counts if sparsity is None else self._goals(kept, units, drop, sparsity, counts)
        grow = self._rated(self.grow, moment) if self.grow is not None and fraction > 0.0 else {}
        chosen = {}
        for name, present in units.items():
            if name in drop:
                count = round(fraction * goals[name]) if name in grow and name not in frozen else 0
                surplus = counts[name] - goals[name]
                new = _exchanged(present, goals[name], surplus, count, drop[name], grow.get(name), name)
                if new is not None:
                    chosen[name] = self._mask(new, present, kept[name])
        return chosen

    def _rated(self, rating: Rating, moment: Moment) -> dict[str, _Rated]:
        """Scores of the units, checked, of the weights that the rating knows about."""
        known = (source for each, source in _SIZES if each is rating and isinstance(self.pattern, Unstructured))
        source = next(known, None)
        raw = {} if source is None else source(moment)
        sizes = source is not None and all(map(_has_plain_size, raw.values()))
        given = raw if sizes else rating(moment)
        found = {}
        for name, weight in moment.items():
            score = given.get(name)
            if score is None:
                _check_unreached(name, moment, rating)
                continue
            if score.shape != weight.shape or not score.is_floating_point():
                raise ShapeError(
                    f"the scores of {name!r} must be real floating-point numbers of the weight's shape.",
                    scores=f"{score.dtype} {tuple(score.shape)}",
                    weight=tuple(weight.shape),
                )
            found[name] = _Rated(self.pattern.reduce(score.detach().to(weight.device)), sizes)
        return found

    def _units(self, mask: Tensor) -> Tensor:
        """Which units are kept: those with an entry that is."""
        if self.pattern.unit_size(mask.shape) == 1:
            return mask.reshape(-1)
        return self.pattern.reduce(mask.float()) > 0

    def _mask(self, new: Tensor, present: Tensor, kept: Tensor) -> Tensor:
        """The mask with these units; entries of units that stay are kept if they were."""
        mask = self.pattern.expand(new, kept.shape)
        if self.pattern.unit_size(kept.shape) == 1:
            return mask
        return mask & (kept | self.pattern.expand(new & ~present, kept.shape))

    def _goals(
        self,
        kept: Mapping[str, Tensor],
        units: Mapping[str, Tensor],
        drop: Mapping[str, _Rated],
        sparsity: float,
        present: Mapping[str, int],
    ) -> dict[str, int]:
        """How many units each weight keeps at a risen sparsity."""
        rated = {}
        for name, each in units.items():
            score = drop[name].values if name in drop else torch.zeros(each.shape, device=each.device)
            size = self.pattern.unit_size(kept[name].shape)
            rated[name] = Units(score.masked_fill(~each, -torch.inf), kept[name].shape, size)
        asked = self.allocation(rated, sparsity)
        gone = {name: each.numel() - present[name] for name, each in units.items()}
        return {name: units[name].numel() - count for name, count in rising(gone, asked).items()}


def rising(gone: Mapping[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    """Counts of removed units that are nowhere below those removed already, with the total that was asked for.

    Sharing out a total by rounding may take a unit back from one weight as the total rises. It is left removed there,
    and taken from the weight that was asked to give up the most instead.

    Args:
        gone: Units that are removed already, by name.
        asked: Units that an allocation would remove, by name.

    Returns:
        Units to remove by name; the sum of those asked for, or of those gone if that is more.

    Example:
        >>> rising({"a": 5, "b": 2}, {"a": 4, "b": 6})
        {'a': 5, 'b': 5}
    """
    counts = {name: max(count, asked[name]) for name, count in gone.items()}
    excess = sum(counts.values()) - sum(asked.values())
    while excess > 0:
        name = max(counts, key=lambda each: counts[each] - gone[each])
        if counts[name] == gone[name]:
            break
        counts[name] -= 1
        excess -= 1
    return counts


def _exchanged(
    present: Tensor, goal: int, surplus: int, count: int, drop: _Rated, grow: _Rated | None, name: str
) -> Tensor | None:
    """The units after some have gone and some have come; None if it is the same ones."""
    count = min(count, present.numel() - goal - surplus, goal)
    if surplus + count == 0:
        return None
    new = dropped(present, drop.scores, surplus + count, name=name, sizes=drop.sizes).bitwise_xor_(present)
    if grow is None or count == 0:
        return new
    return new.bitwise_or_(grown(present, grow.scores, count, name=name, sizes=grow.sizes))


def _has_plain_size(tensor: Tensor) -> bool:
    """Whether the absolute values of a tensor are those that `secateur.scores.magnitude` gives."""
    return tensor.is_floating_point() and tensor.itemsize > 1


def _check_unreached(name: str, moment: Moment, rating: Rating) -> None:
    """Refuse a rating that leaves out a weight for another reason than that it has no gradient."""
    if moment.has_gradient(name):
        raise InvalidInputError(
            f"a rating gave no scores for {name!r}.",
            rating=getattr(rating, "__name__", repr(rating)),
            fix="return scores for every weight",
        )
