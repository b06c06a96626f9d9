"""Views: how the axes of a tensor are laid out over other dims, in row-major order."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.graph.axis import Axis, Dim, Dims, size_of
from secateur.graph.labels import Labels

__all__ = ["reshape"]


def reshape(labels: Labels, dims: Dims, sizes: Sequence[int]) -> Dims | None:
    """The dims after a view of a tensor as `sizes`.

    Args:
        labels: Where axes are cut and merged, if they must be.
        dims: The dims before.
        sizes: The sizes after.

    Returns:
        The dims after; None where no product of axes describes them.

    Example:
        >>> labels = Labels()
        >>> heads, width = labels.fresh(4), labels.fresh(16)
        >>> reshape(labels, ((heads,), (width,)), [64])
        ((Axis(4, free), Axis(16, free)),)
        >>> reshape(labels, ((labels.fresh(64),),), [4, 16])
        ((Axis(4, free),), (Axis(16, free),))
    """
    if 0 in sizes:
        return _reshape_empty(labels, dims, sizes)
    axes = list(labels.tidy(axis for dim in dims for axis in dim))
    result: list[Dim] = []
    for size in sizes:
        front = _front(labels, axes, size)
        if front is None:
            return None
        result.append(front)
    return tuple(result)


def _front(labels: Labels, axes: list[Axis], size: int) -> Dim | None:
    """Take axes away from the front that make up `size` positions; None if that is impossible."""
    taken: list[Axis] = []
    missing = size
    while missing > 1:
        if not axes:
            return None
        first = axes.pop(0) if missing % axes[0].size == 0 else _cut(labels, axes, missing)
        if first is None:
            return None
        taken.append(first)
        missing //= first.size
    return labels.tidy(taken)


def _cut(labels: Labels, axes: list[Axis], missing: int) -> Axis | None:
    """Merge axes at the front until `missing` positions can be split off; what remains stays in `axes`."""
    joined = [axes.pop(0)]
    while size_of(joined) % missing:
        if not axes:
            return None
        joined.append(axes.pop(0))
    first, rest = labels.split(labels.merge(joined), missing)
    axes.insert(0, rest)
    return first


def _reshape_empty(labels: Labels, dims: Dims, sizes: Sequence[int]) -> Dims | None:
    """The same for a tensor without entries: dims behind the empty one keep their sizes."""
    same = 0
    while same < min(len(dims), len(sizes)) and size_of(dims[-1 - same]) == sizes[-1 - same] != 0:
        same += 1
    lead, rest = dims[: len(dims) - same], dims[len(dims) - same :]
    if any(not axis.is_fixed for dim in lead for axis in dim):
        return None
    return (*labels.fixed_dims(sizes[: len(sizes) - same]), *rest)
