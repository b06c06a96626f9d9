"""Calls of ops that work position by position, and of those that make tensors."""

from __future__ import annotations

from tests.graph.oracle import After, Case, Draw, Size, example


def broadcastable(g: Draw, number: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast together; the first is the full one."""
    full = tuple(g.sizes(g.pick(1, 3)))
    shapes = [full]
    for _ in range(number - 1):
        start = g.pick(0, len(full) - 1)
        shapes.append(tuple(n if g.pick(0, 2) else 1 for n in full[start:]))
    return shapes


def shape_of(g: Draw) -> list[int]:
    return g.sizes(g.pick(1, 3))


@example("pointwise")
def add(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.real(*other)), overload="Tensor")


@example(
    "aten.clone", "aten.detach", "aten.alias", "aten.lift_fresh", "aten.lift", "aten._to_copy", "aten.abs_",
    "aten.hardswish", "aten.hardswish_", "aten.gelu_", "aten.mish_", "aten.zero", "aten.zero_",
    "aten.log_sigmoid_forward", "aten.zeros_like", "aten.ones_like",
)  # fmt: skip
def one_operand(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)),))


@example("aten._conj", "aten._conj_physical", "aten._neg_view")
def one_complex(g: Draw) -> Case:
    return Case((g.complex(*shape_of(g)),))


@example("aten.empty_like", values=False)
def empty_like(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)),))


@example("aten.full_like")
def full_like(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), 2.0))


@example("aten.threshold_")
def threshold(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), 0.1, 0.2))


@example("aten.fill", "aten.fill_")
def fill(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), g.real()), overload="Tensor")


@example("aten.copy", "aten.copy_", "aten.heaviside_")
def two_operands(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.real(*other)))


@example(
    "aten.copysign_", "aten.eq_", "aten.ne_", "aten.le_", "aten.lt_", "aten.ge_", "aten.gt_", "aten.rsub",
    "aten._add_relu",
)  # fmt: skip
def two_operands_as_tensors(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.real(*other)), overload="Tensor")


@example("aten.floor_divide", "aten.floor_divide_", "aten.gcd_", "aten.lcm_")
def two_integers(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.numbers(9, *one) + 1, g.numbers(9, *other) + 1))


@example("aten.masked_fill", "aten.masked_fill_")
def masked_fill(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.mask(*other), 0.5), overload="Scalar")


@example("aten.complex", "aten.polar")
def complex_parts(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.real(*other)))


@example("aten._prelu_kernel")
def prelu(g: Draw) -> Case:
    batch, channels = g.sizes(2)
    return Case((g.real(batch, channels), g.real(1, g.choose([1, channels]))))


@example(
    "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.uniform_", "aten.normal_", "aten.exponential_",
    "aten.random_", "aten.log_normal_", "aten.cauchy_", "aten.poisson",
)  # fmt: skip
def draw_like(g: Draw) -> Case:
    return Case((g.positive(*shape_of(g)),))


@example("aten.bernoulli_")
def bernoulli_(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), 0.5), overload="float")


@example("aten.geometric_")
def geometric_(g: Draw) -> Case:
    return Case((g.positive(*shape_of(g)), 0.5))


@example("aten.randint_like")
def randint_like(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), 9))


@example("aten.normal")
def normal(g: Draw) -> Case:
    one, other = broadcastable(g, 2)
    return Case((g.real(*one), g.positive(*other)), overload="Tensor_Tensor")


@example("aten.native_dropout")
def dropout(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)), 0.5, True))


@example("aten.rrelu_with_noise", "aten.rrelu_with_noise_")
def rrelu(g: Draw) -> Case:
    shape = shape_of(g)
    return Case((g.real(*shape), g.positive(*shape)))


@example("aten.tril", "aten.triu", "aten.tril_", "aten.triu_")
def triangle(g: Draw) -> Case:
    return Case((g.real(*g.sizes(g.pick(2, 3))), g.pick(-1, 1)))


FREE = "any number of positions is right"


def whole_shape(after: After) -> list[int]:
    return list(after.shapes[0])


@example("aten.zeros", "aten.ones", "aten.rand", "aten.randn", results=FREE)
def make(g: Draw) -> Case:
    return Case((Size(shape_of(g), whole_shape),))


@example("aten.empty", values=False, results=FREE)
def empty(g: Draw) -> Case:
    return Case((Size(shape_of(g), whole_shape),))


@example("aten.full", results=FREE)
def full(g: Draw) -> Case:
    return Case((Size(shape_of(g), whole_shape), 0.5))


@example("aten.randint", results=FREE)
def randint(g: Draw) -> Case:
    return Case((9, Size(shape_of(g), whole_shape)))


@example("aten.normal.float_float", results=FREE)
def normal_of_size(g: Draw) -> Case:
    return Case((0.0, 1.0, Size(shape_of(g), whole_shape)))


@example("aten.new_zeros", "aten.new_ones", results=FREE)
def new(g: Draw) -> Case:
    return Case((g.real(3), Size(shape_of(g), whole_shape)))


@example("aten.new_empty", values=False, results=FREE)
def new_empty(g: Draw) -> Case:
    return Case((g.real(3), Size(shape_of(g), whole_shape)))


@example("aten.new_full", results=FREE)
def new_full(g: Draw) -> Case:
    return Case((g.real(3), Size(shape_of(g), whole_shape), 0.5))


def contiguous(shape: list[int]) -> list[int]:
    """Strides of a matrix."""
    return [shape[1], 1]


@example("aten.empty_strided", values=False, results=FREE)
def empty_strided(g: Draw) -> Case:
    shape = g.sizes(2)
    return Case((Size(shape, whole_shape), Size(contiguous(shape), lambda after: contiguous(whole_shape(after)))))


@example("aten.new_empty_strided", values=False, results=FREE)
def new_empty_strided(g: Draw) -> Case:
    shape = g.sizes(2)
    stride = Size(contiguous(shape), lambda after: contiguous(whole_shape(after)))
    return Case((g.real(3), Size(shape, whole_shape), stride))


@example("aten.empty_permuted", values=False, results=FREE)
def empty_permuted(g: Draw) -> Case:
    return Case((Size(g.sizes(3), whole_shape), [2, 0, 1]))


@example("aten.arange", "aten.eye", "aten.hann_window", frees=False)
def count_to(g: Draw) -> Case:
    return Case((g.size(),))


@example("aten.randperm", frees=False, values=False)
def permutation(g: Draw) -> Case:
    return Case((g.size(),))


@example("aten.linspace", "aten.logspace", frees=False)
def steps(g: Draw) -> Case:
    return Case((0.0, 1.0, g.size()))


@example("aten.scalar_tensor", frees=False)
def scalar(g: Draw) -> Case:
    return Case((float(g.size()),))


@example("aten.tril_indices", "aten.triu_indices", frees=False)
def indices(g: Draw) -> Case:
    return Case((g.size(), g.size()))


@example("aten._local_scalar_dense", frees=False)
def item(g: Draw) -> Case:
    return Case((g.real(),))


@example("aten._assert_async", frees=False)
def assertion(g: Draw) -> Case:
    return Case((g.real() + 9,))


@example("aten._functional_assert_async", frees=False)
def functional_assertion(g: Draw) -> Case:
    return Case((g.real() + 9, "must not be zero", g.real()))


@example("aten._linalg_check_errors", frees=False)
def check_errors(g: Draw) -> Case:
    return Case((g.numbers(1).int(), "inv"), {"is_matrix": True})


@example("aten._assert_tensor_metadata", "aten.is_pinned")
def metadata(g: Draw) -> Case:
    return Case((g.real(*shape_of(g)),))


@example("aten._fused_sdp_choice")
def sdp_choice(g: Draw) -> Case:
    tensor = g.real(2, 2, 4, 8)
    return Case((tensor, tensor, tensor))


@example("aten.equal", "aten.allclose", "aten.is_same_size", equations="the answer is no tensor")
def compare(g: Draw) -> Case:
    shape = shape_of(g)
    return Case((g.real(*shape), g.real(*shape)))
