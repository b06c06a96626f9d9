"""Tensors made of several, and parts of tensors: cat, stack, split, slice, select, pad."""

from __future__ import annotations

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.rules._table import rule
from secateur.graph.slicing import Cut

__all__: list[str] = []


@rule("aten.cat")
def cat(call: Call) -> list[Dims]:
    """Lay tensors one after the other along a dim; all other dims are equal."""
    tensors = [t for t in call.inputs if t.dim() > 1 or t.numel()] or call.inputs[:1]
    dim = call.arg("dim") % call.out.dim()
    dims = [list(call.dims(t)) for t in tensors]
    for d in range(call.out.dim()):
        if d != dim:
            for other in dims[1:]:
                call.equal(dims[0][d], other[d])
    result = dims[0]
    result[dim] = call.labels.joined([own[dim] for own in dims])
    return [tuple(result)]


@rule("aten.stack")
def stack(call: Call) -> list[Dims]:
    """Lay tensors along a new dim, which cannot change; all other dims are equal."""
    dims = call.dims(call.inputs[0])
    for tensor in call.inputs[1:]:
        for mine, theirs in zip(dims, call.dims(tensor), strict=True):
            call.equal(mine, theirs)
    at = call.arg("dim") % call.out.dim()
    return [(*dims[:at], call.labels.fixed_dim(len(call.inputs)), *dims[at:])]


@rule("aten.split", "aten.unsafe_split", "aten.split_with_sizes", "aten.unsafe_split_with_sizes")
def split(call: Call) -> list[Dims]:
    """Cut a dim into parts.

    Sizes that are written in the code keep the parts whole. Where one size that follows the tensor makes equal parts
    (``chunk``), they stay equal: position j goes in all of them together.
    """
    dims = call.dims(call.args[0])
    d = call.arg("dim") % len(dims)
    whole, sizes = dims[d], [part.shape[d] for part in call.out]
    one_size = "with_sizes" not in call.name
    if one_size and len(sizes) == 1:
        parts = [whole]
    elif one_size and call.name != "aten.unsafe_split" and not call.follows(sizes[0]):
        parts = _kept_whole(call, whole, sizes)
    elif one_size:
        parts = _equal_parts(call, whole, sizes)
    else:
        parts = _parts(call, whole, sizes)
    return [_with(dims, d, part) for part in parts]


def _equal_parts(call: Call, whole: Dim, sizes: list[int]) -> list[Dim]:
    """Parts that all have one size: the dim is (part, position in the part)."""
    if len(set(sizes)) > 1:
        return _kept_whole(call, whole, sizes)
    part, position = call.labels.split(call.labels.merge(whole), len(sizes))
    call.block((part,), f"{call.name} makes a tensor of it")
    return [call.labels.tidy((position,))] * len(sizes)


def _parts(call: Call, whole: Dim, sizes: list[int]) -> list[Dim]:
    """Parts of any sizes; those whose size does not follow stay."""
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    parts = []
    for start, size in zip(starts, sizes, strict=True):
        part = call.labels.part(whole, start, start + size)
        if not call.follows(size):
            call.block(part, f"{call.name} cuts it at sizes that are written in the code")
        parts.append(part)
    return parts


def _kept_whole(call: Call, whole: Dim, sizes: list[int]) -> list[Dim]:
    """Parts of a dim of which nothing can go."""
    call.block(whole, f"{call.name} cuts it at sizes that are written in the code")
    return [call.labels.fixed_dim(size) for size in sizes]


def _with(dims: Dims, at: int, dim: Dim) -> Dims:
    """The dims, with one exchanged."""
    return (*dims[:at], dim, *dims[at + 1 :])


@rule("aten.unbind")
def unbind(call: Call) -> list[Dims]:
    """Take every position of a dim by itself, so that none can go."""
    dims = call.dims(call.args[0])
    d = call.arg("dim") % len(dims)
    call.block(dims[d], f"{call.name} takes its positions one by one")
    return [(*dims[:d], *dims[d + 1 :])] * len(call.out)


@rule("aten.select")
def select(call: Call) -> list[Dims]:
    """Take one position by its number, which others must not shift."""
    dims, index = call.dims(call.args[0]), call.arg("index")
    d = call.arg("dim") % len(dims)
    size = size_of(dims[d])
    start, stop = (0, index + 1) if index >= 0 else (size + index, size)
    (is_literal,) = call.capture.cut_of("select", d, 1).literal
    hold = call.block_if_used if index in (0, -1) else call.block  # the first and the last are always there
    hold((call.labels.span(dims[d], start, stop),) if is_literal else dims[d], "one position of it is taken by number")
    return [(*dims[:d], *dims[d + 1 :])]


@rule("aten.slice")
def slice_(call: Call) -> list[Dims]:
    """Take a range of positions.

    A boundary that is written in the code must not shift. Every other position (``::2``) is (pair, half of the pair).
    """
    dims = call.dims(call.args[0])
    d = call.arg("dim") % len(dims)
    dim, size, step = dims[d], size_of(dims[d]), call.arg("step")
    cut = call.capture.cut_of("slice", d, 3)
    given = call.arg("start") or 0, call.arg("stop", call.arg("end"))
    start, stop = (_position(bound, size) for bound in (given[0], size if given[1] is None else given[1]))
    if len(range(start, stop, step)) == size:
        return [dims]
    if step > 1:
        return [_with(dims, d, _strided(call, dim, start, stop, cut))]
    part = call.labels.part(dim, start, stop)
    for k, (bound, position) in enumerate(zip(given, (start, stop), strict=True)):
        if bound and not _is_end(bound, size) and not (cut.follows[k] or call.follows(bound)):
            counted = call.labels.part(dim, *((0, position) if bound > 0 else (position, size)))
            call.block(counted if cut.literal[k] else dim, cut.why(k))
    return [_with(dims, d, part)]


def _position(bound: int, size: int) -> int:
    """A boundary as Python's slices read it."""
    return slice(bound, None).indices(size)[0]


def _is_end(bound: int | None, size: int) -> bool:
    """Whether a boundary is the end of the dim, however long it is."""
    return bound is None or bound > size


def _strided(call: Call, dim: Dim, start: int, stop: int, cut: Cut) -> Dim:
    """Every so many positions: (n/k, k) if all of the dim is taken apart so, else nothing can go."""
    size, step = size_of(dim), call.arg("step")
    known = cut.literal[2] or not cut.site  # of a step that nobody has seen in the code, torch itself is the author
    if known and start < step and stop == size and size % step == 0:
        outer, inner = call.labels.split(call.labels.merge(dim), size // step)
        call.block((inner,), f"{call.name} takes one of every {step} positions")
        return call.labels.tidy((outer,))
    call.block(dim, f"{call.name} takes one of every {step} positions of a part of it")
    return call.labels.fixed_dim(len(range(start, stop, step)))


@rule("aten.slice_scatter", "aten.select_scatter")
def part_scatter(call: Call) -> list[Dims]:
    """A copy with a part exchanged; where the part lies must not shift."""
    dims, own = call.dims(call.args[0]), list(call.dims(call.args[1]))
    d = call.arg("dim") % len(dims)
    call.block(dims[d], f"{call.name} writes to a part of it")
    if call.name == "aten.slice_scatter":
        call.block(own.pop(d), f"{call.name} writes it to a part of another")
    for mine, theirs in zip((*dims[:d], *dims[d + 1 :]), own, strict=True):
        call.equal(mine, theirs)
    return [dims]


@rule("aten.constant_pad_nd")
def pad(call: Call) -> list[Dims]:
    """Put new positions before and after; they stay."""
    dims, widths, labels = list(call.dims(call.args[0])), call.arg("pad"), call.labels
    for k in range(len(widths) // 2):
        before, after = widths[2 * k], widths[2 * k + 1]
        d = len(dims) - 1 - k
        if before < 0 or after < 0:
            call.block(dims[d], f"{call.name} by a negative width cuts it")
            dims[d] = labels.fixed_dim(call.out.shape[d])
        elif before or after:
            ends = [labels.fixed_dim(width) if width else None for width in (before, after)]
            dims[d] = labels.joined([dim for dim in (ends[0], dims[d], ends[1]) if dim is not None])
    return [tuple(dims)]


@rule("aten.glu")
def glu(call: Call) -> list[Dims]:
    """One half of a dim gates the other: position j goes in both together."""
    dims = call.dims(call.args[0])
    d = call.arg("dim") % len(dims)
    half, position = call.labels.split(call.labels.merge(dims[d]), 2)
    call.block((half,), f"{call.name} gates one half with the other")
    return [_with(dims, d, call.labels.tidy((position,)))]
