"""Sizes that the code uses as values: a scale such as ``head_dim ** -0.5`` must be in the smaller model what it was.

Where Python computes it from attributes alone, they are pinned: the attribute goes on as the old number where it is a
value. A shape cannot be pinned, so the dim whose size is the value keeps its positions. In ``(channels // n) ** -0.5``
that is the width of one of n heads, and not the channels or the heads: both may become fewer together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from secateur.graph.labels import Axis, Dim, Dims, Labels, size_of
from secateur.graph.sources import Attribute, DimSize, Source, key_of, sources_in
from secateur.graph.watching import Tie, Used

__all__ = ["settle_values"]

_WHY = "the code computes with its size (a scale), so another size is another function"


def settle_values(
    labels: Labels,
    values: Iterable[Used],
    attributes: Mapping[Attribute, Dim],
    derived: Sequence[Tie],
    tensors: Mapping[int, Dims],
) -> frozenset[Attribute]:
    """Block the dims whose sizes are values.

    Args:
        labels: Where facts are written down.
        values: Sizes that the code uses as values.
        attributes: Dims that attributes stand for.
        derived: Expressions and the dims whose sizes they give.
        tensors: Labels of the model's tensors, by their ids.

    Returns:
        The attributes that go on as the old number where they are values.
    """
    pinned: set[Attribute] = set()
    mixed: set[Attribute] = set()
    held: list[Dim] = []
    known = _Known(labels, attributes, derived, tensors)
    for used in values:
        leaves = list(sources_in(used.source))
        of_attributes = {leaf for leaf in leaves if isinstance(leaf, Attribute)}
        if used.in_python and of_attributes.issuperset(leaves):
            pinned |= of_attributes
        else:
            mixed |= of_attributes
            held += known.dims_of(used.source)
    # a pinned number in an expression with a shape would be the old one, the shape the new one
    held += [dim for attribute in pinned & mixed for dim in known.dims_of(attribute)]
    for dim in held:
        labels.block(dim, _WHY)
    return frozenset(pinned)


class _Known:
    """Which dims' sizes an expression comes to."""

    def __init__(
        self,
        labels: Labels,
        attributes: Mapping[Attribute, Dim],
        derived: Sequence[Tie],
        tensors: Mapping[int, Dims],
    ) -> None:
        self._labels = labels
        self._attributes = attributes
        self._derived = derived
        self._tensors = tensors

    def dims_of(self, source: Source | int) -> list[Dim]:
        """Dims such that the value stays as long as none of their sizes changes."""
        if isinstance(source, int):
            return []
        if isinstance(source, DimSize):
            return [source.dim]
        if isinstance(source, Attribute):
            return [self._attributes[source]] if source in self._attributes else self._recorded(source)
        for tie in self._derived:
            if key_of(tie.source) == key_of(source):
                return [tie.dim]
        quotient = self._quotient(*source.operands) if source.symbol == "//" else None
        if quotient is not None:
            return [quotient]
        return [dim for operand in source.operands for dim in self.dims_of(operand)]

    def _recorded(self, attribute: Attribute) -> list[Dim]:
        """Dims of a torch.nn layer's tensors whose size it may have recorded there (``Linear.out_features``)."""
        layer = attribute.owner
        if not isinstance(layer, nn.Module) or not any(_is_layer(kind) for kind in type(layer).__mro__):
            return []
        tensors = (*layer.parameters(), *layer.buffers())
        dims = (dim for tensor in tensors for dim in self._tensors.get(id(tensor), ()))
        return [dim for dim in dims if size_of(dim) == attribute.value]

    def _quotient(self, whole: Source | int, part: Source | int) -> Dim | None:
        """The axes of one size that are not those of another; None if the other's are not among them."""
        axes = [list(self._labels.finest(dim)) for dim in (self._dim(whole), self._dim(part)) if dim is not None]
        if len(axes) < 2 or not axes[1]:
            return None
        rest, taken = axes
        for axis in taken:
            found = next((mine for mine in rest if self._labels.are_equal(mine, axis)), None)
            if found is None:
                return None
            rest.remove(found)
        return tuple(rest)

    def _dim(self, source: Source | int) -> tuple[Axis, ...] | None:
        """The dim that a size is that of."""
        if isinstance(source, DimSize):
            dim: Dim = source.dim
            return dim
        return self._attributes.get(source) if isinstance(source, Attribute) else None


def _is_layer(kind: type) -> bool:
    """Whether a class is one of torch's own layers."""
    return kind is not nn.Module and kind.__module__.startswith("torch.nn.modules.")
