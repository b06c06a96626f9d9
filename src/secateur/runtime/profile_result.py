"""The result of a profile: figures, and the table that they are shown as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secateur.runtime.profile_times import Latency

__all__ = ["ModelProfile", "Profile"]

_SIZES = ("", "parameters", "non-zero", "MACs", "non-zero MACs", "bytes")
_TIMES = ("median, ms", "quartiles, ms")


@dataclass(frozen=True)
class ModelProfile:
    """What one model holds and costs.

    Args:
        name: The name that it was given, or that of its class.
        parameters: Number of parameters, tied ones once; a compressed layer counts as the one that it replaces.
        nonzeros: How many of them are not zero; None for a model without values.
        macs: Multiply-accumulate operations of matrix products, convolutions and attention on the example inputs.
        nonzero_macs: Those whose weight is not zero; None for a model without values.
        bytes: Memory of parameters and buffers, what is shared once.
        latency: Wall-clock time of one run on the example inputs, in milliseconds; None if it was not measured.
        note: What there is to know about the figures, or nothing.
    """

    name: str
    parameters: int
    nonzeros: int | None
    macs: int
    nonzero_macs: int | None
    bytes: int
    latency: Latency | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain numbers, strings, lists and dicts, which JSON can hold."""
        timed = None
        if self.latency is not None:
            timed = {**self.latency._asdict(), "quartiles": list(self.latency.quartiles)}
        return {**vars(self), "latency": timed}


@dataclass(frozen=True, repr=False)
class Profile:
    """The result of `profile`: a table when printed.

    Args:
        rows: One model each, in the order given.
        machine: What they were run on: device, instruction set, threads, dtype of the first model.
    """

    rows: tuple[ModelProfile, ...]
    machine: str

    def __getitem__(self, name: str) -> ModelProfile:
        """The row of a model.

        Raises:
            KeyError: There is none of that name.
        """
        return {row.name: row for row in self.rows}[name]

    @property
    def speed_ups(self) -> dict[str, float]:
        """How many times faster than the first model each one is, by its median; only those that were measured."""
        measured = {row.name: row.latency.median for row in self.rows if row.latency is not None}
        first = measured.get(self.rows[0].name)
        return {} if first is None else {name: first / median for name, median in measured.items()}

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain numbers, strings, lists and dicts, which JSON can hold."""
        return {"machine": self.machine, "models": [row.to_dict() for row in self.rows]}

    def __repr__(self) -> str:
        """A table: one line a model, and notes."""
        is_timed = any(row.latency is not None for row in self.rows)
        heads = _SIZES + _TIMES * is_timed + ("speed-up",) * (len(self.speed_ups) > 1)
        columns = zip(*map(self._cells, self.rows), strict=True)
        widths = [max(map(len, (head, *column))) for head, column in zip(heads, columns, strict=False)]
        lines = [f"Profile: {self.machine}"]
        for first, *others in (heads, *map(self._cells, self.rows)):
            numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False))
            lines.append(f"  {first:<{widths[0]}}  {numbers}")
        return "\n".join(lines + [f"  {row.name}: {row.note}" for row in self.rows if row.note])

    def _cells(self, row: ModelProfile) -> tuple[str, ...]:
        """One line of the table, with all columns that there may be."""
        counts = (row.parameters, row.nonzeros, row.macs, row.nonzero_macs, row.bytes)
        shown = ["-" if count is None else f"{count:,}" for count in counts]
        if row.latency is None:
            return (row.name, *shown, "-", "-", "-")
        first, third = row.latency.quartiles
        ratio = self.speed_ups.get(row.name)
        times = (f"{row.latency.median:.3g}", f"{first:.3g} to {third:.3g}")
        return (row.name, *shown, *times, "-" if ratio is None else f"{ratio:.2f}")
