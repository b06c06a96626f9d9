"""What `compress` reports: a line for each layer, and what the whole model gained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CompressionReport", "LayerLine", "shown_bytes"]


@dataclass(frozen=True)
class LayerLine:
    """One layer.

    Args:
        name: Its path.
        shape: Shape of its weight.
        sparsity: Share of the weight that is zero.
        pattern: Where the zeros lie; see `secateur.runtime.pattern_of`.
        format: The chosen format.
        predicted: How many times faster than dense the layer is by itself, on random inputs.
        measured: The same in its place in the model, in runs on the example inputs.
        dense_bytes: Bytes of the dense weight.
        bytes: Bytes of the packed weight.
        why: Why it stayed dense.
    """

    name: str
    shape: tuple[int, ...]
    sparsity: float
    pattern: str
    format: str
    predicted: float
    measured: float
    dense_bytes: int
    bytes: int
    why: str = ""


@dataclass(frozen=True)
class CompressionReport:
    """What was chosen and measured.

    Args:
        layers: One line for each layer with a weight of its own format, or that could have had one.
        dense_seconds: Median seconds of one run of the masked dense model on the example inputs.
        seconds: The same of the compressed model, measured by turns.
        dense_bytes: Bytes of parameters and buffers of the dense model.
        bytes: The same of the compressed model.
        error: Largest difference of an output from that of the dense model, over the largest absolute output.
        threads: Threads of torch while it was measured.
        notes: What was done to the whole model, and where something fell back.
    """

    layers: tuple[LayerLine, ...]
    dense_seconds: float
    seconds: float
    dense_bytes: int
    bytes: int
    error: float
    threads: int
    notes: tuple[str, ...]

    @property
    def speedup(self) -> float:
        """How many times faster than the masked dense model the compressed one is."""
        return self.dense_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values, for JSON."""
        return asdict(self) | {"speedup": self.speedup}

    def __str__(self) -> str:
        """A table for people."""
        heads = ("layer", "shape", "sparsity", "pattern", "format", "predicted", "measured", "bytes")
        rows = [heads, *(_cells(line) for line in self.layers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        reasons = {line.why for line in self.layers if line.why}
        lines += [f"dense because {why}: {', '.join(self._kept_for(why))}" for why in sorted(reasons)]
        lines += [
            f"whole model: {1e3 * self.dense_seconds:.3g} -> {1e3 * self.seconds:.3g} ms, {self.speedup:.2f}x "
            f"({self.threads} thread{'s' if self.threads > 1 else ''}); "
            f"{shown_bytes(self.dense_bytes)} -> {shown_bytes(self.bytes)}; outputs within {self.error:.1e}",
            *self.notes,
        ]
        return "\n".join(lines)

    def _kept_for(self, why: str) -> list[str]:
        """The layers that are dense for one reason, the first few by name."""
        names = [line.name for line in self.layers if line.why == why]
        return names if len(names) <= 4 else [*names[:3], f"… ({len(names)})"]


def _cells(line: LayerLine) -> tuple[str, ...]:
    """One row of the table."""
    is_dense = line.format == "dense"
    return (
        line.name,
        " x ".join(map(str, line.shape)),
        f"{line.sparsity:.1%}",
        line.pattern,
        line.format,
        "" if is_dense else f"{line.predicted:.2f}x",
        "" if is_dense else f"{line.measured:.2f}x",
        shown_bytes(line.bytes) if is_dense else f"{shown_bytes(line.dense_bytes)} -> {shown_bytes(line.bytes)}",
    )


def shown_bytes(count: int) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count} B"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"
