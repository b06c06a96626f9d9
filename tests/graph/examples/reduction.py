"""Calls of sums, means, maxima, scans and norms."""

from __future__ import annotations

from typing import Any

from tests.graph.oracle import Case, Draw, Size, example


def some_dims(g: Draw) -> Any:
    return g.choose([[0], [1, 2], [-1], [0, 1, 2]])


@example("aten.sum")
def total(g: Draw) -> Case:
    if not g.pick(0, 3):
        return Case((g.real(*g.sizes(3)),))
    return Case((g.real(*g.sizes(3)), g.choose([some_dims(g), None]), bool(g.pick(0, 1))), overload="dim_IntList")


@example("aten.mean")
def mean(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), some_dims(g), bool(g.pick(0, 1))), overload="dim")


@example("aten.nansum", "aten.amax", "aten.amin", "aten.logsumexp")
def over_dims(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), some_dims(g), bool(g.pick(0, 1))))


@example("aten.aminmax")
def aminmax(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)),), {"dim": g.pick(-3, 2), "keepdim": bool(g.pick(0, 1))})


@example("aten.any", "aten.all")
def truth(g: Draw) -> Case:
    if g.pick(0, 1):
        return Case((g.mask(*g.sizes(3)), g.pick(-3, 2), bool(g.pick(0, 1))), overload="dim")
    return Case((g.mask(*g.sizes(3)), some_dims(g)), overload="dims")


@example("aten.prod")
def prod(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2), bool(g.pick(0, 1))), overload="dim_int")


@example("aten.var", "aten.std", "aten.var_mean", "aten.std_mean")
def spread(g: Draw) -> Case:
    options = {"correction": g.choose([0, 1]), "keepdim": bool(g.pick(0, 1))}
    return Case((g.real(*g.sizes(3)), g.choose([some_dims(g), None])), options, overload="correction")


@example("aten.linalg_vector_norm")
def vector_norm(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.choose([2, 1, 0, float("inf"), -1]), some_dims(g), bool(g.pick(0, 1))))


@example("aten.norm")
def norm(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), 2, some_dims(g), bool(g.pick(0, 1))), overload="ScalarOpt_dim")


@example("aten.count_nonzero")
def count_nonzero(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), [0, 2]), overload="dim_IntList")


@example("aten.max", "aten.min", "aten.median", "aten.nanmedian")
def extreme(g: Draw) -> Case:
    if not g.pick(0, 2):
        return Case((g.real(*g.sizes(3)),))
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2), bool(g.pick(0, 1))), overload="dim")


@example("aten.argmax", "aten.argmin", "aten.mode")
def argument(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2), bool(g.pick(0, 1))))


@example("aten.kthvalue")
def kthvalue(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), 2, g.pick(-3, 2), bool(g.pick(0, 1))))


@example("aten._softmax", "aten._log_softmax")
def softmax(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2), False))


@example(
    "aten._safe_softmax", "aten.cumsum", "aten.cumsum_", "aten.cumprod", "aten.cumprod_", "aten.logcumsumexp",
    "aten.cummax", "aten.cummin",
)  # fmt: skip
def scan(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), g.pick(-3, 2)))


@example("aten.trace")
def trace(g: Draw) -> Case:
    n = g.size()
    return Case((g.real(n, g.choose([n, n + 1])),))


@example("aten.renorm", "aten.renorm_")
def renorm(g: Draw) -> Case:
    return Case((g.real(*g.sizes(3)), 2, g.pick(0, 2), 0.5))


@example("aten.linalg_cross")
def cross(g: Draw) -> Case:
    n, m = g.sizes(2)
    return Case((g.real(n, 3, m), g.real(g.choose([n, 1]), 3, m)), {"dim": 1})


def channels(g: Draw) -> tuple[Any, list[Any]]:
    """Input (b, c, h) and four vectors (c)."""
    c = g.size()
    return g.real(g.size(), c, 3), [g.real(c), g.real(c), g.real(c), g.positive(c)]


UNCHECKED = "sizes that do not agree are not checked by the op and may read other memory"


@example("aten.native_batch_norm", "aten._native_batch_norm_legit", equations=UNCHECKED)
def batch_norm(g: Draw) -> Case:
    x, vectors = channels(g)
    return Case((x, *vectors, bool(g.pick(0, 1)), 0.1, 1e-5))


@example("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update", equations=UNCHECKED)
def batch_norm_eval(g: Draw) -> Case:
    x, vectors = channels(g)
    return Case((x, *vectors, 0.1, 1e-5))


@example("aten._batch_norm_with_update", equations=UNCHECKED)
def batch_norm_train(g: Draw) -> Case:
    x, vectors = channels(g)
    return Case((x, *vectors, 0.1, 1e-5))


@example("aten.native_layer_norm")
def layer_norm(g: Draw) -> Case:
    n, h, w = g.sizes(3)
    last = g.choose([[w], [h, w]])
    given = g.pick(0, 1)
    size = Size(last, lambda after: list(after.shapes[0][3 - len(last) :]))
    return Case((g.real(n, h, w), size, *([g.real(*last), g.real(*last)] if given else [None, None]), 1e-5))


@example("aten._fused_rms_norm")
def rms_norm(g: Draw) -> Case:
    n, h, w = g.sizes(3)
    size = Size([w], lambda after: list(after.shapes[0][2:]))
    return Case((g.real(n, h, w), size, g.real(w), 1e-5))


@example("aten.native_group_norm", equations=UNCHECKED)
def group_norm(g: Draw) -> Case:
    n, groups, each = g.sizes(3)
    c = groups * each
    sizes = (Size(n, lambda after: after.shapes[0][0]), Size(c, lambda after: after.shapes[0][1]))
    image = Size(3, lambda after: after.shapes[0][2])
    weights = g.choose([[None, None], [g.real(c), g.real(c)]])
    return Case((g.real(n, c, 3), *weights, *sizes, image, Size(groups, lambda after: after.groups), 1e-5))


@example("aten._weight_norm_interface", equations=UNCHECKED)
def weight_norm(g: Draw) -> Case:
    o, i, k = g.sizes(3)
    if g.pick(0, 1):
        return Case((g.real(o, i, k), g.real(o, 1, 1), 0))
    return Case((g.real(o, i, k), g.real(1, 1, k), 2))


@example("aten.embedding_renorm_")
def embedding_renorm(g: Draw) -> Case:
    rows, width = g.sizes(2)
    return Case((g.real(rows, width), g.numbers(rows, 3), 0.5, 2.0))
