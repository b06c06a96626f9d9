"""Arithmetic on sizes: its value once positions are gone, what an attribute must be for it, what it ties together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from secateur.graph.labels import Dim, Labels, size_of
from secateur.graph.sources import OPERATIONS, Attribute, DimSize, Expression, Source, sources_in

__all__ = ["Count", "evaluated", "solved", "tie_product"]

Count = Callable[[Dim], int]
"""Number of positions that a dim keeps."""


def evaluated(source: Source | int, known: Mapping[Attribute, int], count: Count) -> int | None:
    """The value of an expression with new sizes.

    Args:
        source: The expression.
        known: New values of attributes; those that are not in it stay as they are.
        count: Number of positions that a dim keeps.

    Returns:
        The value; None if it divides by zero.
    """
    if isinstance(source, int):
        return source
    if isinstance(source, DimSize):
        return count(source.dim)
    if isinstance(source, Attribute):
        return known.get(source, source.value)
    operands = [evaluated(operand, known, count) for operand in source.operands]
    given = [operand for operand in operands if operand is not None]
    if len(given) < len(operands) or (source.symbol in ("//", "%") and given[1] == 0):
        return None
    return OPERATIONS[source.symbol](*given)


def solved(
    source: Source | int, attribute: Attribute, known: Mapping[Attribute, int], count: Count, wanted: int
) -> int | None:
    """The value of one attribute with which an expression comes to a number, all else being given.

    Args:
        source: The expression, in which the attribute stands once.
        attribute: The attribute.
        known: New values of other attributes.
        count: Number of positions that a dim keeps.
        wanted: What the expression must come to.

    Returns:
        The value, where there is exactly one that makes quotients come out even; None otherwise.
    """
    if source == attribute:
        return wanted if wanted > 0 else None
    if not isinstance(source, Expression) or len(source.operands) != 2:
        return None
    holds = [any(leaf == attribute for leaf in sources_in(operand)) for operand in source.operands]
    if holds.count(True) != 1:
        return None
    place = holds.index(True)
    other = evaluated(source.operands[1 - place], known, count)
    if other is None:
        return None
    needed = _inverse(source.symbol, place, other, wanted)
    return None if needed is None else solved(source.operands[place], attribute, known, count, needed)


def _inverse(symbol: str, place: int, other: int, wanted: int) -> int | None:
    """The operand at `place` (0 or 1) for which an operation with the other one comes to a number."""
    if symbol == "+":
        return wanted - other
    if symbol == "-":
        return wanted + other if place == 0 else other - wanted
    if symbol == "*":
        return wanted // other if other and wanted % other == 0 else None
    if symbol == "//" and place == 0:
        return wanted * other
    if symbol == "//":
        return other // wanted if wanted and other % wanted == 0 else None
    return None


def tie_product(labels: Labels, source: Source, dim: Dim, attributes: Mapping[Attribute, Dim]) -> bool:
    """State what a product or a quotient of sizes demands of the dim that it fixes: all of them keep sizes that fit.

    Position (i, j) of the whole goes when position i of one factor or position j of the other goes; that is more than
    is asked for, since only the numbers must fit.

    Args:
        labels: Where facts are written down.
        source: Where the size of the dim comes from.
        dim: The dim.
        attributes: Dims that attributes stand for.

    Returns:
        Whether anything was stated.
    """
    if not isinstance(source, Expression) or source.symbol not in ("*", "//"):
        return False
    if source.symbol == "*":
        whole, factors = dim, _factors(source, attributes, labels)
    else:
        divided, divisor = source.operands
        part = _factors(divisor, attributes, labels)
        found = _factors(divided, attributes, labels)
        if found is None or part is None:
            return False
        whole, factors = found, (*part, *dim)
    if factors is None or size_of(whole) != size_of(factors):
        return False
    labels.as_many(whole, labels.tidy(factors))
    return True


def _factors(source: Source | int, attributes: Mapping[Attribute, Dim], labels: Labels) -> Dim | None:
    """The dim that has as many positions as a product of sizes; plain numbers in it stay as they are."""
    if isinstance(source, int):
        return labels.fixed_dim(source)
    if isinstance(source, DimSize):
        dim: Dim = source.dim
        return dim
    if isinstance(source, Attribute):
        return attributes[source] if source in attributes else labels.fixed_dim(source.value)
    if source.symbol != "*":
        return None
    parts = [_factors(operand, attributes, labels) for operand in source.operands]
    whole = [part for part in parts if part is not None]
    return tuple(axis for part in whole for axis in part) if len(whole) == len(parts) else None
