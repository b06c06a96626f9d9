"""What a smaller model may cost, and the fewest units that must go for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from numbers import Real

import numpy as np
import numpy.typing as npt

from secateur._errors import InfeasibleError, InvalidInputError
from secateur.graph.coupling import Coupling
from secateur.shrink.latency import LatencyTable, check_table
from secateur.shrink.ordering import Order

__all__ = ["Budget", "costs_of", "fewest"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Budget:
    """What the smaller model may cost, as a fraction in (0, 1] of what the model costs now; all that are given hold.

    Args:
        macs: Multiply-accumulate operations on the example inputs.
        params: Parameters.
        latency: Time that matrix products and convolutions take on the example inputs, by a `LatencyTable`.
    """

    macs: float | None = None
    params: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        """Check the fractions."""
        given = [value for field in fields(self) if (value := getattr(self, field.name)) is not None]
        numbers = [value for value in given if isinstance(value, Real) and not isinstance(value, bool)]
        if not given or numbers != given or not all(0.0 < float(value) <= 1.0 for value in numbers):
            raise InvalidInputError("a budget is a fraction in (0, 1] of what the model costs now.", budget=self)


@dataclass(frozen=True)
class _Limit:
    """One of the costs that a budget names."""

    name: str
    cost: Callable[[Iterable[int]], float]
    share: float
    now: float

    def is_met(self, units: Iterable[int]) -> bool:
        """Whether the model without these units costs no more than it may."""
        return self.cost(units) <= self.share * self.now


def costs_of(coupling: Coupling, table: LatencyTable | None) -> dict[str, Callable[[Iterable[int]], float]]:
    """What a model costs without some units, by the names of the fields of `Budget`.

    Args:
        coupling: The coupling.
        table: How long products take; without it, nothing is said of the latency.

    Raises:
        InvalidInputError: It is no table, or one that does not cover a product of the model.
    """
    costs: dict[str, Callable[[Iterable[int]], float]] = {"macs": coupling.macs, "params": coupling.num_parameters}
    check_table(table)
    if table is not None:
        costs["latency"] = table.predictor(coupling)
    return costs


def fewest(coupling: Coupling, budget: Budget, forced: Ids, order: Order, table: LatencyTable | None) -> Ids:
    """The units that go: some in any case, then as few steps of an order as meet a budget.

    Args:
        coupling: The coupling.
        budget: What the smaller model may cost.
        forced: Units that go in any case.
        order: The order in which others go.
        table: How long products take; needed for a budget on latency.

    Returns:
        Units. Without the last step of the order that is among them the budget would not be met.

    Raises:
        InfeasibleError: The budget is not met when all of them are gone.
    """
    limits = list(_limits(coupling, budget, table))
    ends = order.ends

    def gone(number: int) -> list[int]:
        return [*forced.tolist(), *order.units[: ends[number]].tolist()]

    low, high = 0, len(ends) - 1
    if not all(limit.is_met(gone(high)) for limit in limits):
        raise InfeasibleError(
            "the budget cannot be met.",
            budget=budget,
            **{f"least_{limit.name}": f"{limit.cost(gone(high)) / limit.now:.1%}" for limit in limits},
            fix="a larger budget, a smaller min_units or round_to, or less in ignore and overrides",
        )
    while low < high:
        middle = (low + high) // 2
        if all(limit.is_met(gone(middle)) for limit in limits):
            high = middle
        else:
            low = middle + 1
    return np.array(gone(low), dtype=np.int64)


def _limits(coupling: Coupling, budget: Budget, table: LatencyTable | None) -> Iterator[_Limit]:
    """The costs that a budget names, with what they are now."""
    for name, cost in costs_of(coupling, table).items():
        share = getattr(budget, name)
        if share is not None:
            yield _Limit(name, cost, share, cost(()))
