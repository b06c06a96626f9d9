"""Calls of ops that take positions by number, and of losses and Fourier transforms."""

from __future__ import annotations

import torch

from tests.graph.oracle import Case, Draw, example


@example("aten.embedding")
def embedding(g: Draw) -> Case:
    rows, width = g.sizes(2)
    return Case((g.real(rows, width), g.numbers(rows, *g.sizes(g.pick(1, 2)))))


@example("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(g: Draw) -> Case:
    rows, width = g.sizes(2)
    mode = g.pick(0, 2)
    weights = g.choose([None, g.real(6)]) if mode == 0 else None
    options = {"mode": mode, "per_sample_weights": weights}
    return Case((g.real(rows, width), g.numbers(rows, 6), torch.tensor([0, 2, 5])), options)


def indices(g: Draw, shape: list[int]) -> list[torch.Tensor | None]:
    """Numbers, masks or nothing for each dim of a tensor of three."""
    one = lambda d: g.numbers(shape[d], *g.choose([(2, 4), (4,), (1,)]))  # noqa: E731
    return g.choose([  # type: ignore[no-any-return]
        [None, one(1)], [one(0)], [one(0), None, one(2)], [None, one(1), one(2)], [one(0), one(1), one(2)],
        [g.mask(*shape[:1])], [None, g.mask(*shape[1:])], [g.mask(*shape[:2])], [g.mask(*shape)],
    ])  # fmt: skip


@example("aten.index")
def index(g: Draw) -> Case:
    shape = g.sizes(3)
    return Case((g.real(*shape), indices(g, shape)), overload="Tensor")


@example("aten._unsafe_index")
def index_by_numbers(g: Draw) -> Case:
    shape = g.sizes(3)
    return Case((g.real(*shape), [None, g.numbers(shape[1], 2, 4)]), overload="Tensor")


def put(g: Draw, *, masks: bool) -> Case:
    n, m, k = g.sizes(3)
    rows = torch.randperm(m)[:3]
    chosen, shapes = g.choose([
        ([None, rows], [(n, 3, k), (3, 1), (1, k), ()]),
        ([torch.randperm(n)[:3], None, torch.randperm(k)[:3]], [(3, m), (m,), (3, 1)]),
    ])  # fmt: skip
    if masks and g.pick(0, 1):
        mask = g.mask(*g.choose([(n,), (n, m), (n, m, k)]))
        taken = g.real(n, m, k)[mask]
        chosen, shapes = [mask], [(), tuple(taken.shape), tuple(taken.shape[1:])]
    elif masks and g.pick(0, 1):
        chosen, shapes = [None, g.mask(*g.choose([(m,), (m, k)]))], [(), (1,), (1, 1)]
    return Case((g.real(n, m, k), chosen, g.real(*g.choose(shapes)), bool(g.pick(0, 1))))


@example("aten.index_put", "aten.index_put_", "aten._index_put_impl_")
def index_put(g: Draw) -> Case:
    return put(g, masks=True)


@example("aten._unsafe_index_put")
def index_put_by_numbers(g: Draw) -> Case:
    return put(g, masks=False)


@example("aten.index_select")
def index_select(g: Draw) -> Case:
    shape, dim = g.sizes(3), g.pick(-3, 2)
    return Case((g.real(*shape), dim, g.numbers(shape[dim], g.pick(1, 4))))


@example("aten.index_add", "aten.index_add_", "aten.index_copy", "aten.index_copy_")
def index_write(g: Draw) -> Case:
    shape, dim = g.sizes(3), g.pick(0, 2)
    number = g.pick(1, shape[dim])
    source = [*shape]
    source[dim] = number
    return Case((g.real(*shape), dim, torch.randperm(shape[dim])[:number], g.real(*source)))


@example("aten.index_fill", "aten.index_fill_")
def index_fill(g: Draw) -> Case:
    shape, dim = g.sizes(3), g.pick(0, 2)
    return Case((g.real(*shape), dim, g.numbers(shape[dim], 4), 0.5), overload="int_Scalar")


@example("aten.index_reduce", "aten.index_reduce_")
def index_reduce(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), 0, g.numbers(n, 4), g.real(4, m), "amax"))


@example("aten.gather")
def gather(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), 0, g.numbers(n, 4, g.choose([m, m, m - 1]))))


@example("aten.scatter", "aten.scatter_")
def scatter(g: Draw) -> Case:
    n, m = g.sizes(2)
    chosen = torch.stack([torch.randperm(n)[:3] for _ in range(m)], 1)
    return Case((g.real(n, m), 0, chosen, g.real(g.choose([3, 4]), m)), overload="src")


@example("aten.scatter_add", "aten.scatter_add_")
def scatter_add(g: Draw) -> Case:
    n, m = g.sizes(2)
    columns = g.choose([m, m, m - 1])
    return Case((g.real(n, m), 0, g.numbers(n, 4, columns), g.real(4, columns)))


@example("aten.scatter_reduce", "aten.scatter_reduce_")
def scatter_reduce(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), 0, g.numbers(n, 4, m), g.real(4, m), "amax"), overload="two")


@example("aten.take")
def take(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.numbers(n * m, *g.sizes(2))))


@example("aten.masked_select", frees=False)
def masked_select(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.mask(m)))


@example("aten.masked_scatter", "aten.masked_scatter_")
def masked_scatter(g: Draw) -> Case:
    n, m = g.sizes(2)
    if g.pick(0, 1):
        return Case((g.real(n, m), g.mask(n, 1), g.real(n, m)))
    return Case((g.real(n, m), g.mask(n, m), g.real(n, m)))


@example("aten.nonzero", frees=False)
def nonzero(g: Draw) -> Case:
    return Case((g.mask(*g.sizes(2)),))


@example("aten.nonzero_static", frees=False)
def nonzero_static(g: Draw) -> Case:
    return Case((g.mask(*g.sizes(2)),), {"size": 3})


@example("aten.topk")
def topk(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), 2, g.choose([0, 1, -1])))


@example("aten.sort")
def sort(g: Draw) -> Case:
    if g.pick(0, 1):
        return Case((g.real(*g.sizes(2)),), {"stable": True, "dim": 0}, overload="stable")
    return Case((g.real(*g.sizes(2)), g.choose([0, 1, -1])))


@example("aten.multinomial", values=False, blocks="numbers of a random draw cannot be compared")
def multinomial(g: Draw) -> Case:
    return Case((g.positive(*g.sizes(2)), 2))


@example("aten._unique", "aten._unique2", "aten.unique_consecutive", "aten.bincount", frees=False)
def unique(g: Draw) -> Case:
    return Case((g.numbers(4, g.size()),))


@example("aten.unique_dim", "aten.unique_dim_consecutive", frees=False)
def unique_dim(g: Draw) -> Case:
    return Case((g.numbers(2, g.size(), 2), 0))


@example("aten.histc", frees=False)
def histc(g: Draw) -> Case:
    return Case((g.real(g.size()), 4, 0, 0))


@example("aten.repeat_interleave", frees=False)
def repeat_interleave(g: Draw) -> Case:
    return Case((g.numbers(3, g.size()) + 1,), overload="Tensor")


@example("aten.searchsorted")
def searchsorted(g: Draw) -> Case:
    n, m = g.sizes(2)
    if g.pick(0, 1):
        return Case((g.real(n, m).sort(1).values, g.real(n, 4)), overload="Tensor")
    return Case((g.real(m).sort().values, g.real(n, 4)), overload="Tensor")


@example("aten.bucketize")
def bucketize(g: Draw) -> Case:
    return Case((g.real(*g.sizes(2)), g.real(4).sort().values), overload="Tensor")


@example("aten.isin")
def isin(g: Draw) -> Case:
    return Case((g.numbers(4, *g.sizes(2)), g.numbers(4, 3)), overload="Tensor_Tensor")


@example("aten._pack_padded_sequence")
def pack(g: Draw) -> Case:
    return Case((g.real(3, 4, g.size()), torch.tensor([3, 2, 2, 1]), False))


@example("aten._fft_c2c")
def fft(g: Draw) -> Case:
    return Case((g.complex(*g.sizes(3)), g.choose([[0], [1, 2], [2]]), 0, True))


@example("aten._fft_r2c")
def rfft(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.choose([[0], [1, 2]]), 0, True))


@example("aten._fft_c2r")
def irfft(g: Draw) -> Case:
    return Case((g.complex(*g.sizes(2), 4), [2], 0, 6))


@example("aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss", "aten.soft_margin_loss")
def loss(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.real(n, m), g.pick(0, 2)))


@example("aten.dist")
def dist(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, m), g.real(n, m), 2))


@example("aten.binary_cross_entropy")
def cross_entropy(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.positive(n, m), g.positive(n, m), g.choose([None, g.positive(n, m)]), g.pick(0, 2)))


@example("aten.binary_cross_entropy_with_logits")
def cross_entropy_logits(g: Draw) -> Case:
    n, m = g.sizes(2)
    weights = g.choose([None, g.positive(n, m)]), g.choose([None, g.positive(m)])
    return Case((g.real(n, m), g.positive(n, m), *weights, g.pick(0, 2)))


@example("aten.nll_loss_forward")
def nll(g: Draw) -> Case:
    n, classes = g.sizes(2)
    return Case((g.real(n, classes), g.numbers(classes, n), g.choose([None, g.positive(classes)]), g.pick(0, 2), -100))


@example("aten.nll_loss2d_forward")
def nll2d(g: Draw) -> Case:
    n, classes, h = g.sizes(3)
    weight = g.choose([None, g.positive(classes)])
    return Case((g.real(n, classes, h, 2), g.numbers(classes, n, h, 2), weight, g.pick(0, 2), -100))
