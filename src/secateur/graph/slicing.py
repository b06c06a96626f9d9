"""Parts of tensors, as the code asks for them: which numbers bound a part, and which positions each of them counts.

``x[:, :n]`` takes the positions before the n-th. Where `n` has a source, it is the number of those positions, whatever
goes: the two are tied. Where it is a literal, those positions stay and all others are free. Where it is neither, nobody
knows what it will be, and the whole dim stays.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateur.graph.integers import Size
from secateur.graph.labels import Dim, Labels, size_of
from secateur.graph.literals import Site, is_literal
from secateur.graph.sources import Expression, Source, old_value

__all__ = ["Cut", "cuts_of_index", "cuts_of_narrow", "ties_of"]


@dataclass(frozen=True)
class Cut:
    """One part that is taken of one dim.

    Args:
        op: The op that will take it: slice or select.
        place: The dim at the time of that op, when positions were selected and dims inserted before it.
        dim: The dim of the tensor itself.
        numbers: Start, stop and step of a slice; the position of a select.
        literal: Which of them are literals.
        site: Where in the code.
    """

    op: str
    place: int
    dim: int
    numbers: tuple[Any, ...]
    literal: tuple[bool, ...]
    site: str

    @property
    def follows(self) -> tuple[bool, ...]:
        """Which of the numbers will be others when positions are gone."""
        return tuple(isinstance(number, Size) for number in self.numbers)

    def why(self, number: int) -> str:
        """Why what one of the numbers counts must stay."""
        known = self.literal[number] or not self.site
        how = "is written in the code" if known else "comes from nowhere that is known"
        return f"a part of it is cut out at a boundary that {how}{f' ({self.site})' if self.site else ''}"


def cuts_of_index(tensor: Tensor, index: Any, site: Site) -> list[Cut]:
    """What ``tensor[index]`` takes, in the order in which torch does it; nothing where a mask stands for many dims."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, bool | list) or (isinstance(part, Tensor) and _is_mask(part)) for part in parts):
        return []
    nodes = site.index(len(parts)) if any(_numbers_in(part) for part in parts) else [None] * len(parts)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    cuts: list[Cut] = []
    place = dim = 0
    for part, node in zip(parts, nodes, strict=True):
        if part is None:
            place += 1
        elif part is Ellipsis:
            place, dim = place + tensor.dim() - taken, dim + tensor.dim() - taken
        elif isinstance(part, slice):
            bounds = (node.lower, node.upper, node.step) if isinstance(node, ast.Slice) else (None,) * 3
            numbers = (part.start, part.stop, part.step)
            literal = tuple(is_literal(bound, number) for bound, number in zip(bounds, numbers, strict=True))
            cuts.append(Cut("slice", place, dim, numbers, literal, str(site)))
            place, dim = place + 1, dim + 1
        elif isinstance(part, int):
            cuts.append(Cut("select", place, dim, (part,), (is_literal(node, part),), str(site)))
            dim += 1
        else:
            place, dim = place + 1, dim + 1
    return cuts


def cuts_of_narrow(tensor: Tensor, dim: int, start: Any, length: Any, site: Site) -> list[Cut]:
    """What ``tensor.narrow(dim, start, length)`` takes."""
    if not (isinstance(start, int) and isinstance(length, int)):
        return []
    nodes = site.arguments("start", "length")
    first, number = (is_literal(node, given) for node, given in zip(nodes, (start, length), strict=True))
    dim %= tensor.dim()
    return [Cut("slice", dim, dim, (start, start + length, 1), (first, first and number, True), str(site))]


def _is_mask(index: Tensor) -> bool:
    """Whether an index says yes or no for each position, so that it may stand for several dims."""
    return index.dtype in (torch.bool, torch.uint8)


def _numbers_in(part: Any) -> bool:
    """Whether a part of an index is bounded by numbers."""
    return isinstance(part, int) or (isinstance(part, slice) and (part.start or part.stop or part.step) is not None)


def ties_of(cut: Cut, dim: Dim, labels: Labels) -> Iterator[tuple[Source, Dim]]:
    """State what the numbers of a slice demand: each with the positions that it counts."""
    size = size_of(dim)
    labels.doing = "slicing"
    for number in cut.numbers[:2] if cut.op == "slice" else ():
        if isinstance(number, Size) and 0 < abs(int(number)) <= size:
            source, end = (number.source, int(number)) if number > 0 else (negated(number.source), -int(number))
            counted = labels.part(dim, 0, end) if number > 0 else labels.part(dim, size - end, size)
            yield source, counted
            yield from _of_equal_parts(source, dim, labels)


def _of_equal_parts(source: Source, dim: Dim, labels: Labels) -> Iterator[tuple[Source, Dim]]:
    """Where a number counts equal parts (``n // 2``, ``2 * width``), they keep the same positions."""
    size = size_of(dim)
    times, one = _multiple(source)
    length = old_value(one)
    if times == 1 and isinstance(one, Expression) and one.symbol == "//":
        whole, number = one.operands
        if isinstance(number, int) and not isinstance(whole, int) and old_value(whole) == size == length * number:
            yield whole, dim
            _equate_parts(dim, size // number, labels)
    elif times > 1 and size % length == 0:
        yield one, labels.part(dim, 0, length)
        _equate_parts(dim, length, labels)


def _multiple(source: Source) -> tuple[int, Source]:
    """A source as so many times another."""
    if isinstance(source, Expression) and source.symbol == "*":
        for number, other in (source.operands, source.operands[::-1]):
            if isinstance(number, int) and not isinstance(other, int):
                return number, other
    return 1, source


def _equate_parts(dim: Dim, length: int, labels: Labels) -> None:
    """State that all parts of one length keep the same positions."""
    first = labels.part(dim, 0, length)
    for start in range(length, size_of(dim), length):
        labels.equal(first, labels.part(dim, start, start + length))


def negated(source: Source) -> Source:
    """The source of the number with the other sign."""
    if isinstance(source, Expression) and source.symbol == "neg" and not isinstance(source.operands[0], int):
        return source.operands[0]
    return Expression("neg", (source,))
