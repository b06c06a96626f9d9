"""The order in which units go: pools of units that compete, and steps of one or more units that go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling, Group
from secateur.graph.solve import FIXED

__all__ = ["Order", "Scope", "compete", "ranked", "take_turns"]

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class Scope(StrEnum):
    """Which units compete with one another to stay."""

    PER_GROUP = "per_group"
    """Units of one group: every group loses the same fraction of its units."""

    GLOBAL = "global"
    """Units of all groups, each by its score divided by the mean of its group."""

    @classmethod
    def _missing_(cls, value: object) -> Scope:
        """Refuse a word that is no scope."""
        raise InvalidInputError(
            f"{value!r} is no scope.", scopes=", ".join(cls), fix='scope="global", or scope=Scope.PER_GROUP'
        )


@dataclass(frozen=True)
class Order:
    """Units in the order in which they go.

    Args:
        units: Class numbers, shape (n,).
        steps: Number of the step with which each unit goes, ascending; shape (n,).
        scores: What each is worth relative to the mean of its group, shape (n,).
        size: How many units there are that compete, with those that must stay.
    """

    units: Ids
    steps: Ids
    scores: Numbers
    size: int

    @cached_property
    def ends(self) -> Ids:
        """Numbers of units after which one may stop, ascending, 0 first."""
        changes = np.nonzero(np.diff(self.steps))[0] + 1
        last = [len(self.units)] if len(self.units) else []
        return np.concatenate([[0], changes, last]).astype(np.int64)

    def first(self, wanted: float) -> Ids:
        """The units of the first steps, as many as come nearest to a number; of two that are as near, the fewer."""
        ends = self.ends
        return self.units[: ends[np.argmin(np.abs(ends - wanted))]]


def ranked(coupling: Coupling, group: Group, scores: Numbers, kept: Ids) -> Order:
    """The order within one group: lowest score first, of equal scores the first position.

    Args:
        coupling: The coupling.
        group: A group of it.
        scores: Scores of all classes; units with infinite ones stay.
        kept: How many units may be left, descending and below the number that there is; shape (steps,).

    Returns:
        The order; units that must stay are not in it.

    Raises:
        InvalidInputError: A score is NaN.
    """
    units = np.array(group.units, dtype=np.int64)
    own = scores[units]
    if np.isnan(own).any():
        raise InvalidInputError(f"the scores of {group.name!r} are not all numbers.", scores=own[:8].tolist())
    going = np.isfinite(own)
    mean = float(np.abs(own[going]).mean()) if going.any() else 0.0
    place = np.lexsort((_places(coupling, min(group.footprint))[units], own))
    place = place[going[place]]
    ends = len(units) - kept
    ends = ends[ends <= len(place)]
    last = int(ends[-1]) if len(ends) else 0
    steps = np.searchsorted(ends, np.arange(last), side="right").astype(np.int64)
    return Order(units[place[:last]], steps, own[place[:last]] / (mean or 1.0), len(units))


def compete(orders: Sequence[Order]) -> Order:
    """One order of several: the step whose units are worth least on average goes first.

    Args:
        orders: Orders of groups.

    Returns:
        All of their units; those of each order stay in its order.
    """
    return _merged(orders, [_worth(order) for order in orders])


def take_turns(orders: Sequence[Order]) -> Order:
    """One order of several, in which all of them lose the same fraction of their units at about the same time."""
    return _merged(orders, [_progress(order) for order in orders])


def _merged(orders: Sequence[Order], keys: Sequence[Numbers]) -> Order:
    """Units of all orders by their keys, which ascend within each order; of equal keys the first order goes first."""
    units = np.concatenate([np.empty(0, dtype=np.int64), *(order.units for order in orders)])
    steps = np.concatenate([np.empty(0, dtype=np.int64), *(order.steps for order in orders)])
    scores = np.concatenate([np.empty(0), *(order.scores for order in orders)])
    key = np.concatenate([np.empty(0), *keys])
    source = np.repeat(np.arange(len(orders)), np.array([len(order.units) for order in orders], dtype=np.int64))
    place = np.lexsort((source, key))
    changes = (np.diff(source[place]) != 0) | (np.diff(steps[place]) != 0)
    numbers = np.concatenate([[0], np.cumsum(changes)])[: len(place)].astype(np.int64)
    return Order(units[place], numbers, scores[place], sum(order.size for order in orders))


def _worth(order: Order) -> Numbers:
    """Mean score of the step of each unit, never below that of a step before."""
    starts = order.ends[:-1]
    if not len(starts):
        return order.scores
    sizes = np.diff(order.ends)
    return np.repeat(np.maximum.accumulate(np.add.reduceat(order.scores, starts) / sizes), sizes)


def _progress(order: Order) -> Numbers:
    """Which fraction of all units is gone in the middle of the step of each unit."""
    ends = order.ends
    return np.repeat((ends[:-1] + ends[1:]) / 2 / max(1, order.size), np.diff(ends))


def _places(coupling: Coupling, where: tuple[str, int]) -> Ids:
    """First position of every class along one dim of one tensor, its own or of those that it is part of."""
    name, dim = where
    solution = coupling.solution
    places = np.full(len(solution.parents), np.iinfo(np.int64).max)
    for axis in coupling.dims[name][dim]:
        classes = solution.classes(axis).astype(np.int64)
        position = np.arange(len(classes))
        while len(classes):
            free = (classes != FIXED) & ~solution.blocked[classes]
            classes, position = classes[free], position[free]
            np.minimum.at(places, classes, position)
            classes, position = solution.parents[classes].reshape(-1).astype(np.int64), np.repeat(position, 2)
    return places
