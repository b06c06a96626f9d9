"""The part of a report that is about zeros: how many each tensor has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from secateur import _compat
from secateur.dst import History
from secateur.masks import Masks
from secateur.masks.eligible import eligible_names, find
from secateur.report.figures import Bars, Fact, Facts, Section, table
from secateur.report.units import Unit

__all__ = ["Zeros", "sparsity_bars", "sparsity_sections", "zeros_of"]


_LEAST = 1e-3
"""Sparsity from which zeros of weights are worth a word: a few come about by chance, in random numbers of 24 bits."""


class Zeros(NamedTuple):
    """One tensor: its name, its shape if that is known, its entries, and how many of them are zero."""

    name: str
    shape: tuple[int, ...] | None
    entries: int
    zeros: int

    @property
    def sparsity(self) -> float:
        """Fraction of the entries that are zero."""
        return self.zeros / self.entries if self.entries else 0.0

    @property
    def shown_shape(self) -> str | None:
        """The shape as text, if it is known."""
        return None if self.shape is None else "×".join(map(str, self.shape))


def zeros_of(
    masks: Mapping[str, Tensor] | None = None, model: nn.Module | None = None, histories: Sequence[History] = ()
) -> list[Zeros]:
    """Zeros by tensor: of masks, else of those that a model has, else of a training's last change, else of its weights.

    Args:
        masks: Bool masks by dotted name, True = kept.
        model: The model.
        histories: What happened to masks; the last entry of the first counts.

    Returns:
        A line for each masked tensor, or for each weight of a model that has no masks; none if hardly any is zero.
    """
    found = masks if masks is not None else Masks(model) if model is not None else {}
    if found:
        return [_of_mask(name, mask) for name, mask in found.items()]
    layers = next((history[-1].layers for history in histories if len(history)), {})
    if layers:
        return [Zeros(name, None, one.num_entries, one.num_entries - one.num_kept) for name, one in layers.items()]
    weights = {} if model is None else {name: find(model, name) for name in eligible_names(model, None, None)}
    lines = [_of_mask(name, weight) for name, weight in weights.items() if not _compat.is_fake(weight)]
    return lines if _sum_of(lines).sparsity >= _LEAST else []


def _sum_of(lines: Sequence[Zeros]) -> Zeros:
    """All tensors together."""
    return Zeros("", None, sum(line.entries for line in lines), sum(line.zeros for line in lines))


def _of_mask(name: str, mask: Tensor) -> Zeros:
    """The zeros of a mask, or of a weight."""
    return Zeros(name, tuple(mask.shape), mask.numel(), mask.numel() - int(mask.detach().count_nonzero()))


def sparsity_bars(lines: Sequence[Zeros]) -> Bars:
    """The sparsity of each tensor."""
    values = tuple(line.sparsity for line in lines)
    return Bars("Sparsity of each tensor", tuple(line.name for line in lines), (("sparsity", values),), "fraction", 1.0)


def sparsity_sections(lines: Sequence[Zeros]) -> list[Section]:
    """The part of a report, if there is anything to say."""
    if not lines:
        return []
    whole = _sum_of(lines)
    facts = Facts(
        (
            Fact("Zeros", whole.zeros, None, "count"),
            Fact("Entries of these tensors", whole.entries, None, "count"),
            Fact("Sparsity", whole.sparsity, None, "fraction"),
        )
    )
    rows = [(line.name, line.shown_shape, line.entries, line.zeros, line.sparsity) for line in lines]
    columns: list[tuple[str, Unit]] = [("tensor", "name"), ("shape", "")]
    columns += [("entries", "count"), ("zeros", "count"), ("sparsity", "fraction")]
    return [
        Section("Sparsity of each layer", (facts, sparsity_bars(lines), table("Zeros of each tensor", columns, rows)))
    ]
