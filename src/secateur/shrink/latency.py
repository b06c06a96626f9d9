"""How long a model's matrix products and convolutions take: a table of measured times, and what it predicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from secateur._errors import InvalidInputError
from secateur._files import written_file
from secateur.graph.costs import Counter, Product
from secateur.graph.coupling import Coupling

__all__ = ["LatencyTable", "Needed", "TimeGrid", "check_table", "needs", "sizes_of"]

_FORMAT = "secateur.LatencyTable.1"
_FRACTIONS = (0.25, 0.5, 0.75, 1.0)
_STAIRCASE = 16  # times of convolutions go up in steps of so many channels, and are measured on the steps


@dataclass(frozen=True)
class TimeGrid:
    """Measured times of one kind of product at all combinations of some sizes.

    Args:
        kind: ``"matmul"``, of sizes (batch, n, k, m), or ``"convolution"``, of sizes (batch, groups, outputs of a
            group, inputs of a group, window …, image …).
        sizes: For each of these, where it was measured, ascending; a single size if it never changes.
        seconds: One time for each combination, the last size fastest.
    """

    kind: str
    sizes: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check that there is a time for each combination."""
        is_ascending = all(several == tuple(sorted(set(several))) and several for several in self.sizes)
        if not is_ascending or len(self.seconds) != math.prod(map(len, self.sizes)):
            raise InvalidInputError(
                "a grid has ascending sizes, and one time for each combination of them.",
                sizes=self.sizes,
                times=len(self.seconds),
            )

    def covers(self, needed: Needed) -> bool:
        """Whether the grid says how long a product takes at all sizes that it may come to have."""
        if self.kind != needed.kind or len(self.sizes) != len(needed.sizes):
            return False
        parts = zip(self.sizes, needed.sizes, needed.changes, strict=True)
        return all(
            size <= own[-1] if len(own) > 1 else (own[0], False) == (size, changes) for own, size, changes in parts
        )

    def at(self, sizes: tuple[int, ...]) -> float:
        """The time at given sizes, linear between measured ones; below the smallest it is that of the smallest."""
        times = np.array(self.seconds).reshape([len(own) for own in self.sizes])
        for own, size in zip(self.sizes, sizes, strict=True):
            above = min(int(np.searchsorted(own, size)), len(own) - 1)
            below = max(above - 1, 0)
            way = (size - own[below]) / (own[above] - own[below]) if above > below else 0.0
            times = times[below] + max(0.0, way) * (times[above] - times[below])
        return float(times)


@dataclass(frozen=True)
class Needed:
    """What a table must say of a product: its kind, its sizes now, and which of them change when units go."""

    kind: str
    sizes: tuple[int, ...]
    changes: tuple[bool, ...]

    def grid(self) -> tuple[tuple[int, ...], ...]:
        """Sizes at which it is to be measured."""
        step = _STAIRCASE if self.kind == "convolution" else 1
        return tuple(
            _spread(size, step) if changes else (size,) for size, changes in zip(self.sizes, self.changes, strict=True)
        )


def _spread(size: int, step: int) -> tuple[int, ...]:
    """Some sizes from 1 to a size, on multiples of `step`."""
    inner = {min(size, math.ceil(size * fraction / step) * step) for fraction in _FRACTIONS}
    return tuple(sorted({1, *inner}))


@dataclass(frozen=True)
class LatencyTable:
    """Measured times of products. A plan is a function of the table: the same table gives the same plan.

    Args:
        grids: Times by kind and sizes. For a product the first grid counts that covers its sizes.
        machine: What it was measured on.

    Example:
        >>> table = LatencyTable((TimeGrid("matmul", ((1,), (8,), (1, 64), (32,)), (1e-6, 4e-6)),))
        >>> table.grids[0].at((1, 8, 22, 32))
        2e-06
    """

    grids: tuple[TimeGrid, ...]
    machine: str = ""

    def __repr__(self) -> str:
        """How many kinds of products it covers, and of what machine."""
        sizes = sum(len(grid.seconds) for grid in self.grids)
        where = f", {self.machine}" if self.machine else ""
        return f"LatencyTable: {len(self.grids)} products, {sizes:,} measured times{where}"

    def predictor(self, coupling: Coupling) -> Callable[[Iterable[int]], float]:
        """How long the example inputs' run takes when some units are gone.

        Args:
            coupling: The result of `analyze`.

        Returns:
            A function of class numbers: the sum of the seconds of all matrix products and convolutions. Other ops are
            not in it.

        Raises:
            InvalidInputError: The table does not cover a product of the model.
        """
        grids = [self.grid_for(needed) for needed in needs(coupling)]

        def seconds(units: Iterable[int]) -> float:
            count = coupling.counter(units)
            return sum(
                grid.at(sizes_of(product, count)) for product, grid in zip(coupling.products, grids, strict=True)
            )

        return seconds

    def find(self, needed: Needed) -> TimeGrid | None:
        """The first grid that covers a product, if there is one."""
        return next((grid for grid in self.grids if grid.covers(needed)), None)

    def grid_for(self, needed: Needed) -> TimeGrid:
        """The first grid that covers a product.

        Raises:
            InvalidInputError: There is none.
        """
        found = self.find(needed)
        if found is None:
            raise InvalidInputError(
                f"the latency table does not cover a {needed.kind} of the model.",
                sizes=needed.sizes,
                changing=needed.changes,
                fix="table = secateur.shrink.measure_latency(model, coupling, table=table) measures what is missing",
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """The table as plain numbers, strings, lists and dicts, which JSON can hold."""
        grids = [
            {"kind": grid.kind, "sizes": [list(sizes) for sizes in grid.sizes], "seconds": list(grid.seconds)}
            for grid in self.grids
        ]
        return {"format": _FORMAT, "machine": self.machine, "grids": grids}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The table that `to_dict` gave.

        Raises:
            InvalidInputError: It is none.
        """
        try:
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}")
            grids = tuple(
                TimeGrid(grid["kind"], tuple(tuple(sizes) for sizes in grid["sizes"]), tuple(grid["seconds"]))
                for grid in content["grids"]
            )
            return cls(grids, content["machine"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInputError(
                "this is no latency table.", found=str(error)[:80], fix="table.to_dict()"
            ) from error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table to a JSON file; it is there in whole or not at all."""
        with written_file(path) as beside:
            beside.write_text(json.dumps(self.to_dict()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a table that `save` wrote.

        Raises:
            InvalidInputError: The file holds no table.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise InvalidInputError(
                f"{path} holds no latency table.",
                found=str(error.__cause__ or error)[:80],
                fix="table.save(path) writes such files",
            ) from error


def check_table(table: object) -> None:
    """Refuse what is no table of times.

    Raises:
        InvalidInputError: It is neither a table nor None.
    """
    if table is not None and not isinstance(table, LatencyTable):
        raise InvalidInputError(
            "a latency table is measured, or loaded from a file.", given=repr(table), fix="LatencyTable.load(path)"
        )


def sizes_of(product: Product, count: Counter) -> tuple[int, ...]:
    """Sizes of a product in the layout of `TimeGrid`, given how many positions dims keep."""
    sizes = [count(dim) for dim in product.dims]
    if product.is_convolution:
        groups = count(product.groups)
        return (sizes[0], groups, sizes[1] // max(1, groups), *sizes[2:])
    outer, inner = sizes[:-3], [1, 1, 1, *sizes][-3:]
    return (math.prod(outer), *inner)


def needs(coupling: Coupling) -> list[Needed]:
    """What a table must say of each product of a model."""
    now = coupling.counter()
    least = coupling.counter(unit for group in coupling.groups for unit in group.units[1:])
    found = []
    for product in coupling.products:
        sizes = sizes_of(product, now)
        changes = tuple(one != other for one, other in zip(sizes, sizes_of(product, least), strict=True))
        found.append(Needed("convolution" if product.is_convolution else "matmul", sizes, changes))
    return found
