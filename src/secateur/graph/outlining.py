"""Run ops for the shapes of their results: products, convolutions and slow functions, most of the work, give zeros.

What an op does to positions does not depend on values, and few models look at values on their way. Where one does
(a size that is counted, a branch on a number, an array of numpy), the run is of no use, and is made again in earnest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["HANDING_OUT", "Execute", "Outline", "in_earnest", "outlined_first"]

Execute = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""Runs one op: (op, positional arguments, keyword arguments) -> result."""

Result = TypeVar("Result")


class ValuesNeeded(Exception):
    """The model looks at a value that was not computed."""


def in_earnest(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one op as it is."""
    return func(*args, **kwargs)


class Outline:
    """Runs ops, but gives zeros for what products, convolutions and slow functions would compute.

    Attributes:
        is_void: Whether the model has asked for values that were not computed, so that the run says nothing.
    """

    def __init__(self) -> None:
        self.is_void = False
        self._has_left_out = False

    def refuse_handing_out(self, name: str) -> None:
        """End the run if a method of tensors hands values out past the dispatcher.

        Raises:
            ValuesNeeded: It does, and some were not computed.
        """
        if self._has_left_out and name in HANDING_OUT:
            self._give_up(name)

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one op.

        Raises:
            ValuesNeeded: It reads values, and some were not computed.
        """
        shape_of, reads = _known(func)
        if shape_of is not None and not kwargs:
            shape = shape_of(*args)
            if shape is not None:
                self._has_left_out = True
                zeros: Tensor = torch.ops.aten.new_zeros.default(args[0], shape)
                return zeros
        if self._has_left_out and reads is not None and reads(args):
            self._give_up(str(func))
        return func(*args, **kwargs)

    def _give_up(self, name: str) -> None:
        """End the run; a model may catch the error, so it is noted, too."""
        self.is_void = True
        raise ValuesNeeded(name)


def outlined_first(run: Callable[[Outline | None], Result]) -> Result:
    """Make a run with an `Outline`; if it fails or needs values, in earnest.

    Args:
        run: Makes the run, given the outline or None; nothing of a run that failed stays behind.

    Returns:
        What `run` returned, the first time that it succeeded.
    """
    outline = Outline()
    try:
        result = run(outline)
    except Exception:  # of the user's model, on zeros where it would have had values
        return run(None)
    return run(None) if outline.is_void else result


@cache
def _known(func: Any) -> tuple[Callable[..., Sequence[int] | None] | None, Callable[[Sequence[Any]], bool] | None]:
    """The shape of an op's result if it need not be run; whether it hands values to Python or makes sizes of them."""
    tags = getattr(func, "tags", ())
    if func in _INDEXING:
        return None, lambda args: any(index is not None and index.dtype in _MASKS for index in args[1])
    reads = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    return _SHAPES.get(func), (lambda _: True) if reads else None


_MASKS = (torch.bool, torch.uint8)


def _are_alike(*tensors: Tensor) -> bool:
    """Whether tensors are plain ones, of one dtype and device."""
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors if type(tensor) in _PLAIN}
    return len(kinds) == 1 and all(type(tensor) in _PLAIN for tensor in tensors)


_PLAIN = (Tensor, nn.Parameter)
"""Types of tensors whose memory is known; fake ones, and others that see ops themselves, are left alone."""


def _like(tensor: Tensor, *_: object) -> Sequence[int] | None:
    """The shape of the argument, for a function that is applied entry by entry, or a softmax."""
    fits = type(tensor) in _PLAIN and tensor.is_floating_point() and _is_in_order(tensor)
    return tensor.shape if fits else None


def _mm(left: Tensor, right: Tensor) -> Sequence[int] | None:
    """``(n, k) @ (k, m) -> (n, m)``; None where it does not fit."""
    fits = _are_alike(left, right) and left.shape[1] == right.shape[0]
    return (left.shape[0], right.shape[1]) if fits else None


def _addmm(bias: Tensor, left: Tensor, right: Tensor) -> Sequence[int] | None:
    """``bias + left @ right``, for a bias along the last dim."""
    shape = _mm(left, right) if _are_alike(bias, left) else None
    return shape if shape is not None and bias.shape == shape[1:] else None


def _bmm(left: Tensor, right: Tensor) -> Sequence[int] | None:
    """``(b, n, k) @ (b, k, m) -> (b, n, m)``."""
    fits = _are_alike(left, right) and left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
    return (left.shape[0], left.shape[1], right.shape[2]) if fits else None


def _convolution(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Sequence[int] | None:
    """``(n, channels, …) -> (n, filters, …)``; None for transposed ones, other layouts, or where it does not fit."""
    rank = weight.dim() - 2
    tensors = (images, weight) if bias is None else (images, weight, bias)
    if not (_are_alike(*tensors) and _is_in_order(images) and _is_in_order(weight)):
        return None
    if transposed or images.dim() != weight.dim() or images.shape[1] != weight.shape[1] * groups:
        return None
    if weight.shape[0] % groups or (bias is not None and bias.shape != weight.shape[:1]) or images.numel() == 0:
        return None
    every = [list(setting) * (rank if len(setting) == 1 else 1) for setting in (stride, padding, dilation)]
    sizes = [
        (size + 2 * pad - spread * (width - 1) - 1) // step + 1
        for size, width, step, pad, spread in zip(images.shape[2:], weight.shape[2:], *every, strict=True)
    ]
    return (images.shape[0], weight.shape[0], *sizes) if min(sizes) > 0 else None


def _is_in_order(tensor: Tensor) -> bool:
    """Whether a tensor has the strides of a new one; those along a size of 1 tell the layouts of images apart."""
    if not tensor.is_contiguous():
        return False
    wanted = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != wanted:
            return False
        wanted *= size
    return True


_SHAPES: dict[Any, Callable[..., Sequence[int] | None]] = {
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
    torch.ops.aten.bmm.default: _bmm,
    torch.ops.aten.convolution.default: _convolution,
    **dict.fromkeys(
        (
            *(torch.ops.aten.gelu.default, torch.ops.aten.silu.default, torch.ops.aten.sigmoid.default),
            *(torch.ops.aten.tanh.default, torch.ops.aten.exp.default, torch.ops.aten.erf.default),
            *(torch.ops.aten.softplus.default, torch.ops.aten.mish.default),
        ),
        _like,
    ),
    torch.ops.aten._softmax.default: lambda tensor, _, widens: None if widens else _like(tensor),
}
"""Ops that need not be run, with the shapes of their results, which lie in memory as those say."""

_INDEXING = frozenset(
    (
        *(torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor),
        *(torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default),
    )
)
"""Ops whose results have sizes that depend on values only where a mask says which positions are meant."""

HANDING_OUT = frozenset({"tolist", "numpy", "__array__", "__dlpack__"})
"""Methods of tensors that show their values to what is not torch."""
