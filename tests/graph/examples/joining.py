"""Calls of ops that join tensors and take parts of them."""

from __future__ import annotations

import torch

from tests.graph.oracle import After, Case, Draw, Size, example


@example("aten.cat")
def cat(g: Draw) -> Case:
    n, dim = g.size(), g.pick(0, 2)
    shapes = [[n, 4, 3] for _ in range(g.pick(1, 3))]
    for shape in shapes:
        shape[dim] = g.pick(1, 4)
    return Case(([g.real(*shape) for shape in shapes], g.choose([dim, dim - 3])))


@example("aten.stack")
def stack(g: Draw) -> Case:
    shape = g.sizes(2)
    return Case(([g.real(*shape) for _ in range(g.pick(1, 3))], g.pick(-3, 2)))


@example("aten.split")
def split(g: Draw) -> Case:
    size, dim, follows = g.size(), g.pick(0, 1), bool(g.pick(0, 2))
    shape = [4, 4]
    shape[dim] = size * g.pick(1, 3) + (0 if g.pick(0, 2) else 1)
    number = Size(size, lambda after: after.shapes[0][dim]) if follows else size
    return Case((g.real(*shape), number, dim), overload="Tensor", follows=follows)


@example("aten.unsafe_split")
def unsafe_split(g: Draw) -> Case:
    size = g.size()
    number = Size(size, lambda after: after.shapes[0][1])
    return Case((g.real(3, size * g.pick(1, 3)), number, 1), overload="Tensor")


@example("aten.split_with_sizes", "aten.unsafe_split_with_sizes")
def split_with_sizes(g: Draw) -> Case:
    sizes, follows = [g.pick(1, 5) for _ in range(g.pick(1, 3))], bool(g.pick(0, 2))
    number = Size(sizes, lambda after: [shape[1] for shape in after.shapes[: len(sizes)]]) if follows else sizes
    return Case((g.real(3, sum(sizes)), number, 1), follows=follows)


@example("aten.unbind")
def unbind(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2)))


@example("aten.select")
def select(g: Draw) -> Case:
    shape, dim = g.sizes(2), g.pick(0, 1)
    index = g.pick(-shape[dim], shape[dim] - 1)
    return Case((g.real(*shape), dim, index), overload="int", trusts_literals=bool(g.pick(0, 1)))


@example("aten.slice")
def slice_(g: Draw) -> Case:
    n = g.pick(6, 12)
    x, dim, way = g.real(3, n), 1, g.pick(0, 5)
    if way == 0:  # pairs
        return Case((x, dim, g.pick(0, 1), 9223372036854775807, 2), overload="Tensor")
    if way == 1:  # boundaries that follow
        at = g.pick(2, n - 2)
        first = Size(at, lambda after: after.shapes[0][1])
        return Case((x, dim, 0, first), overload="Tensor", follows=True)
    start, stop = g.choose([(0, g.pick(1, n)), (g.pick(0, n - 1), 9223372036854775807), (-g.pick(1, n), n + 9)])
    if way == 2:
        start, stop = 0, -g.pick(1, n - 1)
    step = g.pick(1, 3) if way == 3 else 1
    return Case((x, dim, start, stop, step), overload="Tensor", trusts_literals=bool(g.pick(0, 1)))


@example("aten.slice_scatter")
def slice_scatter(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.real(n, m - 1), 1, 0, m - 1))


@example("aten.select_scatter")
def select_scatter(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.real(n), 1, g.pick(0, m - 1)))


@example("aten.constant_pad_nd")
def pad(g: Draw) -> Case:
    widths = [g.pick(0, 2) for _ in range(2 * g.pick(1, 2))]
    if not g.pick(0, 3):
        widths[g.pick(0, len(widths) - 1)] = -1
    return Case((g.real(*g.sizes(2)), widths, 0.5))


@example("aten.glu")
def glu(g: Draw) -> Case:
    return Case((g.real(g.size(), 2 * g.size()), g.choose([1, -1])))


def whole_shape(after: After) -> list[int]:
    return list(after.shapes[0])


@example("aten.view", "aten._unsafe_view")
def view(g: Draw) -> Case:
    before, after = g.choose([
        ((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (2, 2, 6)), ((4, 6), (2, 12)), ((4, 6), (8, 3)), ((4, 6), (3, 8)),
        ((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((6, 4), (1, 6, 2, 2)), ((5, 3), (3, 5)), ((4, 1, 6), (4, 6)),
        ((12,), (2, 3, 2)), ((2, 6), (4, 3)),
    ])  # fmt: skip
    return Case((g.real(*before), Size(list(after), whole_shape)))


@example("aten._reshape_alias")
def reshape_alias(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), Size([n * m], whole_shape), [1]))


@example("aten.view.dtype")
def view_dtype(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.choose([torch.int64, torch.int32])))


@example("aten.view_as_real")
def view_as_real(g: Draw) -> Case:
    return Case((g.complex(*g.sizes(2)),))


@example("aten.view_as_complex", blocks="two positions always stay")
def view_as_complex(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2), 2),))


@example("aten.t", "aten.t_")
def t(g: Draw) -> Case:
    return Case((g.real(*g.sizes(g.pick(1, 2))),))


@example("aten.transpose", "aten.transpose_")
def transpose(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2), g.pick(-3, 2)))


@example("aten.permute")
def permute(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.choose([[2, 0, 1], [0, -1, 1], [1, 0, 2]])))


@example("aten.unsqueeze", "aten.unsqueeze_")
def unsqueeze(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.pick(-3, 2)))


@example("aten.squeeze", "aten.squeeze_")
def squeeze(g: Draw) -> Case:
    shape = [g.choose([1, 4]) for _ in range(3)]
    overload, args = g.choose([("default", ()), ("dim", (g.pick(-3, 2),)), ("dims", ([0, -1],))])
    return Case((g.real(*shape), *args), overload=overload)


@example("aten.expand")
def expand(g: Draw) -> Case:
    n, m = g.sizes(2)
    shape, full = g.choose([((n, 1), [n, m]), ((n, m), [4, n, m]), ((1, m), [2, n, m]), ((n, m), [n, m])])
    return Case((g.real(*shape), Size(full, whole_shape)))


@example("aten.repeat")
def repeat(g: Draw) -> Case:
    times = [g.pick(1, 3) for _ in range(g.pick(2, 3))]
    x = g.real(*g.sizes(2))
    lead = len(times) - 2

    def follow(after: After) -> list[int]:
        result, source = after.shapes[0], after.shapes[1]
        return [*result[:lead], *(a // b for a, b in zip(result[lead:], source, strict=True))]

    return Case((x, Size(times, follow)))


@example("aten.as_strided", "aten.as_strided_")
def as_strided(g: Draw) -> Case:
    n, m = g.sizes(2)
    if g.pick(0, 1):
        shape = Size([n, m], whole_shape)
        return Case((g.real(n, m), shape, Size([m, 1], lambda after: [after.shapes[0][1], 1])))
    return Case((g.real(n, m), [n - 1, 2], [m, 1]))


@example("aten.set_", frees=False)
def set_(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.real(*g.sizes(2))), overload="source_Tensor")


@example("aten.diagonal", "aten.diagonal_copy")
def diagonal(g: Draw) -> Case:
    n = g.size()
    return Case((g.real(4, n, g.choose([n, n + 1])), g.choose([0, 0, 1]), *g.choose([(1, 2), (-1, -2), (2, 1)])))


@example("aten.diag_embed")
def diag_embed(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.choose([0, 0, 1]), *g.choose([(0, 1), (-2, -1), (0, 2)])))


@example("aten.unfold")
def unfold(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.choose([0, -1]), g.pick(1, 3), g.pick(1, 2)))


@example("aten.flip")
def flip(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.choose([[0], [-1], [0, 2], []])))


@example("aten.rot90")
def rot90(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-4, 4), g.choose([[0, 1], [2, 1], [-1, 0]])))


@example("aten.roll")
def roll(g: Draw) -> Case:
    shifts, dims = g.choose([([1], [0]), ([2, -1], [0, 2]), ([1], [])])
    return Case((g.real(*g.sizes(3)), shifts, dims))


@example("aten.pixel_shuffle")
def pixel_shuffle(g: Draw) -> Case:
    return Case((g.real(g.size(), 4 * g.size(), 2, 2), 2))


@example("aten.pixel_unshuffle")
def pixel_unshuffle(g: Draw) -> Case:
    return Case((g.real(g.size(), g.size(), 4, 4), 2))


@example("aten.channel_shuffle")
def channel_shuffle(g: Draw) -> Case:
    groups = g.pick(2, 4)
    return Case((g.real(2, groups * g.size(), 3), Size(groups, lambda after: after.groups)))
