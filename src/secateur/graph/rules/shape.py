"""Views and permutations: the same positions under other dims."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of
from secateur.graph.reshaping import reshape
from secateur.graph.rules._table import rule

__all__: list[str] = []


@rule("aten.view", "aten._unsafe_view", "aten._reshape_alias")
def view(call: Call) -> list[Dims]:
    """Merge and split dims; positions that no product of axes describes are blocked."""
    source = call.args[0]
    return [_reshaped(call, call.dims(source), tuple(call.out.shape))]


def _reshaped(call: Call, dims: Dims, sizes: Sequence[int]) -> Dims:
    """The dims after a view as `sizes`."""
    same = tuple(size_of(dim) for dim in dims)  # not the tensor's shape: it may have been changed in place
    result = reshape(call.labels, dims, sizes)
    if result is not None:
        return result
    for dim in dims:
        call.block(dim, f"{call.name} from {same} to {tuple(sizes)} mixes its positions")
    return call.labels.fixed_dims(sizes)


@rule("aten.view.dtype")
def view_dtype(call: Call) -> list[Dims]:
    """See the bytes of the last dim as numbers of another kind, more or fewer of them."""
    dims, out = call.dims(call.args[0]), call.out
    if out.element_size() == call.args[0].element_size():
        return [dims]
    call.block(dims[-1], f"{call.name} sees its bytes as other numbers")
    return [(*dims[:-1], call.labels.fixed_dim(out.shape[-1]))]


@rule("aten.view_as_real")
def view_as_real(call: Call) -> list[Dims]:
    """Real and imaginary part in a new last dim."""
    return [(*call.dims(call.args[0]), call.labels.fixed_dim(2))]


@rule("aten.view_as_complex")
def view_as_complex(call: Call) -> list[Dims]:
    """The last dim holds real and imaginary part, and disappears."""
    source = call.args[0]
    dims = call.dims(source)
    call.block(dims[-1], "it holds the parts of complex numbers")
    call.block(_between_rows(call, source), "complex numbers are seen in its rows, which must begin at even places")
    return [dims[:-1]]


def _between_rows(call: Call, source: Tensor) -> Dim:
    """What says how far apart the rows of `source` lie in memory; nothing if they lie one behind the other."""
    whole, strides = source._base, sorted(zip(source.stride(), source.shape, strict=True))
    if whole is None or not call.capture.knows(whole) or not whole.is_contiguous():
        return ()
    reach = 1
    for stride, size in strides:
        if size > 1 and stride != reach:
            rows = reshape(call.labels, call.dims(whole), (whole.numel() // stride, stride))
            return rows[-1] if rows is not None else call.dims(whole)[-1]
        reach *= size
    return ()


@rule("aten.t", "aten.t_")
def transpose_two(call: Call) -> list[Dims]:
    """Turn the order of (at most two) dims around."""
    return [call.dims(call.args[0])[::-1]]


@rule("aten.transpose", "aten.transpose_")
def transpose(call: Call) -> list[Dims]:
    """Exchange two dims."""
    dims = list(call.dims(call.args[0]))
    if dims:
        one, other = call.arg("dim0"), call.arg("dim1")
        dims[one], dims[other] = dims[other], dims[one]
    return [tuple(dims)]


@rule("aten.permute")
def permute(call: Call) -> list[Dims]:
    """Put dims into another order."""
    dims = call.dims(call.args[0])
    return [tuple(dims[d] for d in call.arg("dims"))]


@rule("aten.unsqueeze", "aten.unsqueeze_")
def unsqueeze(call: Call) -> list[Dims]:
    """Insert a dim of size 1."""
    dims = list(call.dims(call.args[0]))
    dims.insert(call.arg("dim") % (len(dims) + 1), ())
    return [tuple(dims)]


@rule("aten.squeeze", "aten.squeeze_")
def squeeze(call: Call) -> list[Dims]:
    """Take dims of size 1 out."""
    dims = call.dims(call.args[0])
    named = call.arg("dim", range(len(dims)))
    chosen = {d % len(dims) for d in (named if isinstance(named, Sequence) else [named])} if dims else set()
    return [tuple(dim for d, dim in enumerate(dims) if d not in chosen or size_of(dim) != 1)]


@rule("aten.expand")
def expand(call: Call) -> list[Dims]:
    """Stretch dims of size 1, whose copies all show one position; new dims are free to be any size."""
    own, shape = call.dims(call.args[0]), call.out.shape
    own = ((),) * (len(shape) - len(own)) + own
    return [tuple(d if size_of(d) == n else call.free_dim(n) for n, d in zip(shape, own, strict=True))]


@rule("aten.repeat")
def repeat(call: Call) -> list[Dims]:
    """Lay copies side by side: (copy, position) along every dim, with free copies."""
    own, times, labels = call.dims(call.args[0]), call.arg("repeats"), call.labels
    own = ((),) * (len(times) - len(own)) + own
    return [tuple(labels.tidy((*call.free_dim(n), *dim)) for n, dim in zip(times, own, strict=True))]


@rule("aten.as_strided", "aten.as_strided_", "aten.set_")
def as_strided(call: Call) -> list[Dims]:
    """Address memory directly; only another order of strides under the same shape is understood."""
    dims, out = call.dims(call.args[0]), call.out
    if call.name != "aten.set_" and call.arg("storage_offset") in (None, 0) and _same_shape(dims, out.shape):
        return [dims]
    for tensor in call.inputs:
        for dim in call.dims(tensor):
            call.block(dim, f"{call.name} addresses memory directly")
    return call.fixed()


def _same_shape(dims: Dims, shape: Sequence[int]) -> bool:
    """Whether dims have these sizes."""
    return tuple(size_of(dim) for dim in dims) == tuple(shape)
