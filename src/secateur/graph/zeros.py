"""Where zeros stay zeros: whether setting units to zero in the parameters is the same as removing them.

A tensor is *clean* if it is zero at every position that can be removed, once the parameters are zero there. Parameters
are; a linear layer makes clean activations; ``relu`` keeps them so, ``sigmoid`` does not. A sum over positions that can
be removed is the same without them only if they hold zeros: a clean factor is enough for a product, as a parameter
always is. Of an op that is not known here, nothing is taken to be clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims

__all__ = ["gives_clean", "is_free", "spoiled"]

IsClean = Callable[[Tensor], bool]


def is_free(dims: Iterable[Dim]) -> bool:
    """Whether some position of some dim can be removed, as far as is known."""
    for dim in dims:
        for axis in dim:
            if not axis.is_fixed:
                return True
    return False


def spoiled(call: Call, clean: IsClean) -> Iterator[Dim]:
    """Dims over which an op adds up positions that are not zero where they can be removed."""
    name = _plain(call.name)
    if name in _PRODUCTS:
        left, right = call.args[_PRODUCTS[name] : _PRODUCTS[name] + 2]
        if not (clean(left) or clean(right)):
            yield call.dims(left)[1 if name == "convolution" else -1]
            if name == "addbmm":
                yield call.dims(left)[0]
    elif name.startswith("_scaled_dot_product") and not (clean(call.args[0]) or clean(call.args[1])):
        yield call.dims(call.args[0])[3]
    elif name in _SUMS and not clean(call.args[0]):
        dims, named = call.dims(call.args[0]), call.arg("dim")
        chosen = [named] if isinstance(named, int) else named or range(len(dims))
        yield from (dims[d] for d in chosen)
    elif name in _ALL_CLEAN_SUMS and not all(clean(tensor) for tensor in call.inputs):
        yield from (call.dims(tensor)[-1] for tensor in call.inputs)


def gives_clean(call: Call, results: Sequence[Dims], clean: IsClean) -> bool:
    """Whether all results of an op are clean."""
    name = _plain(call.name)
    if not any(is_free(dims) for dims in results):
        return True
    if name in _ZEROS or (name in ("full", "full_like", "fill", "new_full") and _scalar(call) == 0):
        return True
    if name in ("expand", "repeat"):
        return clean(call.args[0]) and not _is_stretched(call.dims(call.args[0]), results[0])
    if name in _KEEPING or (name in _AT_ZERO and _AT_ZERO[name](call)):
        return all(clean(tensor) for tensor in call.inputs if tensor.is_floating_point() or tensor.is_complex())
    if name in _ALL and len(_operands(call)) == 2:
        return all(clean(tensor) and _covers(call, tensor, results[0]) for tensor in _operands(call))
    if name in _ANY:
        factors = [tensor for tensor in _operands(call) if clean(tensor)]
        return all(any(_covers_dim(call, t, len(results[0]), d) for t in factors) for d in _free_places(results[0]))
    if name in _FIRST:  # a number is zero nowhere
        return isinstance(call.args[0], Tensor) and clean(call.args[0]) and _covers(call, call.args[0], results[0])
    special = _SPECIAL.get(name)
    return special is not None and special(call, results[0], clean)


@cache
def _plain(name: str) -> str:
    """``aten.add_`` -> ``add``."""
    return name.rsplit(".", 1)[-1].rstrip("_") if name.startswith("aten.") else name


def _operands(call: Call) -> list[Tensor]:
    """The tensors that a pointwise op combines."""
    return [argument for argument in call.args[:2] if isinstance(argument, Tensor)]


def _free_places(dims: Dims) -> list[int]:
    """Numbers of the dims with positions that can be removed."""
    return [d for d, dim in enumerate(dims) if is_free((dim,))]


def _covers(call: Call, tensor: Tensor, result: Dims) -> bool:
    """Whether a tensor has, without being stretched, all dims of a result that have positions that can be removed."""
    return all(_covers_dim(call, tensor, len(result), d) for d in _free_places(result))


def _covers_dim(call: Call, tensor: Tensor, rank: int, d: int) -> bool:
    """Whether a tensor has a dim of a result, aligned from the right, and is not stretched there."""
    own = call.dims(tensor)
    place = d - rank + len(own)
    return place >= 0 and is_free((own[place],))


def _is_stretched(before: Dims, after: Dims) -> bool:
    """Whether there are more axes with positions that can be removed than there were."""
    return len({axis for dim in after for axis in dim if not axis.is_fixed}) > len(
        {axis for dim in before for axis in dim if not axis.is_fixed}
    )


def _scalar(call: Call) -> Any:
    """The value that a tensor is filled with."""
    return call.arg("fill_value", call.arg("value"))


def _product(call: Call, result: Dims, clean: IsClean) -> bool:
    """``(…, n, k) @ (…, k, m)``: rows are zero if the left one is clean, columns if the right one is."""
    start = _PRODUCTS[_plain(call.name)]
    left, right = call.args[start : start + 2]
    free = set(_free_places(result))
    sides = {len(result) - 2: clean(left), len(result) - 1: clean(right)}
    if not all(sides.get(d, clean(left) or clean(right)) for d in free):
        return False
    return not start or (clean(call.args[0]) and _covers(call, call.args[0], result))


def _convolution(call: Call, result: Dims, clean: IsClean) -> bool:
    """Channels of the output are zero if weight and bias are."""
    weight, bias = call.args[1:3]
    return _free_places(result) == [1] and clean(weight) and (bias is None or clean(bias))


def _attention(call: Call, result: Dims, clean: IsClean) -> bool:
    """What is zero in the values stays so; places in the sequence do not."""
    return clean(call.args[2]) and 2 not in _free_places(result)


def _norm(call: Call, result: Dims, clean: IsClean) -> bool:
    """Scale and shift are zero where the result must be."""
    scale, shift = call.arg("weight"), call.arg("bias")
    if not isinstance(scale, Tensor):
        return False
    channels = 1 if "layer" not in call.name else len(result) - 1
    return _free_places(result) == [channels] and clean(scale) and (shift is None or clean(shift))


def _first_only(call: Call, result: Dims, clean: IsClean) -> bool:
    """A multiple of the first argument, or of its rows."""
    return clean(call.args[0])


def _copied(call: Call, result: Dims, clean: IsClean) -> bool:
    """The second argument, broadcast."""
    return clean(call.args[1]) and _covers(call, call.args[1], result)


def _embedding(call: Call, result: Dims, clean: IsClean) -> bool:
    """Rows of a clean table are zero at the columns that can be removed."""
    return clean(call.args[0]) and _free_places(result) in ([], [len(result) - 1])


def _rows_of(call: Call, result: Dims, clean: IsClean) -> bool:
    """Positions taken by numbers whose own dims cannot be removed."""
    numbers = [t for t in call.inputs[1:] if not t.is_floating_point()]
    return clean(call.args[0]) and not any(is_free(call.dims(number)) for number in numbers)


_PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "convolution", "_grouped_mm"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), 1),
}
"""Products that are summed, with the place of their first factor among the arguments."""

_SUMS = frozenset({"sum", "nansum", "count_nonzero", "cumsum", "linalg_vector_norm", "norm", "trace"})
_ALL_CLEAN_SUMS = frozenset({"_cdist_forward", "_euclidean_dist"})

_ZEROS = frozenset(
    {"zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"}
)

_MOVES = (
    "view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "unsqueeze", "squeeze", "slice", "select",
    "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind", "diagonal", "unfold",
    "as_strided", "alias", "detach", "clone", "_to_copy", "lift_fresh", "cat", "stack", "flip", "roll", "tril", "triu",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "native_dropout", "view_as_real",
    "view_as_complex", "real", "imag", "_conj", "index_add", "index_copy", "scatter_add",
)  # fmt: skip
_REDUCTIONS = (
    "sum", "nansum", "mean", "amax", "amin", "max", "min", "norm", "linalg_vector_norm", "count_nonzero", "any", "prod",
    "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
    "upsample_trilinear3d", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d",
)  # fmt: skip
_ZERO_AT_ZERO = (
    "relu", "gelu", "silu", "mish", "hardswish", "tanh", "leaky_relu", "elu", "_prelu_kernel", "hardshrink",
    "softshrink", "neg", "abs", "sign", "sgn", "square", "sqrt", "sin", "sinh", "asin", "asinh", "tan", "atan",
    "atanh", "erf", "expm1", "log1p", "round", "floor", "ceil", "trunc", "frac", "glu", "_weight_norm_interface",
)  # fmt: skip
_KEEPING = frozenset((*_MOVES, *_REDUCTIONS, *_ZERO_AT_ZERO))


def _between(call: Call) -> bool:
    """Whether zero stays zero between two bounds."""
    low, high = (call.arg(low, call.arg(other)) for low, other in (("min", "min_val"), ("max", "max_val")))
    return all(not isinstance(bound, Tensor) for bound in (low, high)) and (low or 0) <= 0 <= (high or 0)


_AT_ZERO: dict[str, Callable[[Call], bool]] = {
    **dict.fromkeys(("clamp", "hardtanh"), _between),
    "clamp_min": lambda call: not isinstance(call.args[1], Tensor) and call.args[1] <= 0,
    "clamp_max": lambda call: not isinstance(call.args[1], Tensor) and call.args[1] >= 0,
    "pow": lambda call: not any(isinstance(a, Tensor) for a in call.args[1:]) and call.args[1] > 0,
    "constant_pad_nd": lambda call: call.arg("value") == 0,
    "masked_fill": lambda call: not isinstance(call.arg("value"), Tensor) and call.arg("value") == 0,
}
_ALL = frozenset({"add", "sub", "maximum", "minimum"})
_ANY = frozenset({"mul"})
_FIRST = frozenset({"div", "remainder", "fmod"})

_SPECIAL: dict[str, Callable[[Call, Dims, IsClean], bool]] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _product),
    "convolution": _convolution,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_group_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "cudnn_batch_norm",
        ),
        _norm,
    ),
    **dict.fromkeys(("_fused_rms_norm", "mv"), _first_only),
    "copy": _copied,
    "embedding": _embedding,
    **dict.fromkeys(("index", "index_select", "gather"), _rows_of),
}
