"""The Python side of a trace: which number in the code fixes which dim of which result.

Functions of torch are seen here before they are taken apart into ATen ops, with the very numbers that the code passes.
A number with a source is tied to the dim that it fixes; a plain number above 1 keeps that dim whole.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from secateur.graph.capture import Capture, tensors_in
from secateur.graph.labels import Dim, size_of
from secateur.graph.literals import Site
from secateur.graph.outlining import HANDING_OUT, Outline
from secateur.graph.provenance import Attribute, DimSize, Size, Source
from secateur.graph.slicing import cuts_of_index, cuts_of_narrow, ties_of

__all__ = ["Tie", "Used", "Watch"]


@dataclass(frozen=True, eq=False)
class Tie:
    """A number from `source` is the size of `dim`, so both must change together."""

    source: Source
    dim: Dim
    where: str


@dataclass(frozen=True, eq=False)
class Used:
    """A size that the code uses as a value; `in_python` if Python computes with it, not a function of torch."""

    source: Source
    in_python: bool


class Watch(TorchFunctionMode):
    """Watches the functions of torch that a model calls.

    Args:
        capture: The capture of the same run, which knows the labels of tensors.
        outline: If values are left out in this run: what does so.
    """

    def __init__(self, capture: Capture, outline: Outline | None = None) -> None:
        super().__init__()
        self.capture = capture
        self.outline = outline
        self.ties: list[Tie] = []
        self.values: list[Used] = []

    def noted(self, what: str, source: Source, other: Source | int) -> None:
        """Take note of what a `Size` was used for; see `secateur.graph.provenance.Size`."""
        if what == "value":
            self.values.append(Used(source, in_python=True))
        elif isinstance(other, int):
            self._compared(source, other)
        elif isinstance(source, DimSize):
            self.ties.append(Tie(other, source.dim, "a comparison"))
        elif isinstance(other, DimSize):
            self.ties.append(Tie(source, other.dim, "a comparison"))

    def _compared(self, source: Source, number: int) -> None:
        """Keep a size that was equal to a plain number: the code goes another way with another size."""
        if isinstance(source, DimSize) and number > 1:
            self.capture.labels.block(source.dim, f"the code compares its size with {number}")
        elif isinstance(source, Attribute):
            self.values.append(Used(source, in_python=False))

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function, then note the numbers that it was given."""
        kwargs = kwargs or {}
        if func == _SHAPE:  # a wrapper that is made anew each time, so never the same object
            return self._sizes(args[0])
        if func is torch.Tensor.size:
            sizes = self._sizes(args[0])
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return sizes if dim is None else sizes[dim]
        if func in (torch.Tensor.numel, torch.numel):
            return math.prod(self._sizes(args[0] if args else kwargs["input"]))
        name = getattr(func, "__name__", "")
        if name in HANDING_OUT:
            self._handed_out(name, args[0])
        if name in _CUTS:
            return self._cut(name, func, args, kwargs, Site(sys._getframe(1)))
        given = _GIVEN.get(name)
        if given is None:
            self._note_operands(name, args, kwargs)
            self.capture.made.clear()
            out = func(*args, **kwargs)
            self._fix_made(name, (args, kwargs))
            if name in _ATTENTION:
                self._hold_attention(name, args, kwargs, tensors_in(out))
            if name == "lstm":
                self._hold_state(next(argument for argument in args if isinstance(argument, tuple)))
            return out
        self._note_operands(name, args, kwargs)
        numbers = given(args, kwargs)
        self.capture.following = bool(numbers) and all(_follows(n) for n in numbers)
        try:
            out = func(*args, **kwargs)
        finally:
            self.capture.following = False
        for number, dim in _placed(name, self.capture, numbers, args, out):
            self._fix(number, dim, name)
        return out

    def _handed_out(self, name: str, tensor: Tensor) -> None:
        """Take note of a method that shows a tensor's values to what is not torch."""
        if self.outline is not None:
            self.outline.refuse_handing_out(name)
        self.capture.handed_out(tensor)

    def _cut(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], site: Site) -> Any:
        """Take a part of a tensor, and tie the numbers that bound it to the positions that they count."""
        tensor = args[0] if args else kwargs["input"]
        if name == "narrow":
            rest = dict(zip(("dim", "start", "length"), args[1:], strict=False)) | kwargs
            cuts = cuts_of_narrow(tensor, rest["dim"], rest["start"], rest["length"], site)
        else:
            cuts = cuts_of_index(tensor, args[1], site)
        dims = self.capture.dims(tensor)
        for cut in cuts:
            for source, dim in ties_of(cut, dims[cut.dim], self.capture.labels):
                self.ties.append(Tie(source, dim, f"slicing, {site}"))
        self.capture.cuts = cuts
        try:
            return func(*args, **kwargs)
        finally:
            self.capture.cuts = []

    def _fix_made(self, name: str, given: object) -> None:
        """Tie new dims of a function without a row of its own to the numbers of their sizes that it was given."""
        if self.capture.made:
            numbers = {int(n): n for n in tree_leaves(given) if isinstance(n, int) and not isinstance(n, bool)}
            for dim in self.capture.made:
                self._fix(numbers.get(size_of(dim)), dim, name)

    def _note_operands(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of sizes that torch itself computes with: ``x / self.head_dim``."""
        given = tree_leaves((args, kwargs)) if name in _MADE_OF_NUMBERS else (*args, *kwargs.values())
        if name.strip("_") in _ARITHMETIC:
            self.values += [Used(value.source, in_python=False) for value in given if isinstance(value, Size)]

    def _hold_attention(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Tensor]
    ) -> None:
        """Keep what torch's own attention functions would compute something else with."""
        if name == "scaled_dot_product_attention" and kwargs.get("scale") is None:
            query = args[0] if args else kwargs["query"]
            self.capture.hold_for(
                results, self.capture.dims(query)[-1], "the default scale of attention depends on its size"
            )
        elif name == "multi_head_attention_forward":
            for tensor in tensors_in((args[5:7], args[11:13], kwargs)):
                for dim in self.capture.dims(tensor):
                    self.capture.hold_for(
                        results, dim, "the code of nn.MultiheadAttention needs equal widths inside and outside"
                    )

    def _hold_state(self, state: Sequence[Tensor]) -> None:
        """Keep the state of an LSTM that is projected: torch tells that by a state wider than the output."""
        output, cell = (self.capture.dims(tensor)[-1] for tensor in state)
        if size_of(output) != size_of(cell):
            self.capture.labels.block(cell, "the code of nn.LSTM needs a projection narrower than the state")

    def _sizes(self, tensor: Tensor) -> torch.Size:
        """The shape of a tensor, each size with its source."""
        with torch._C.DisableTorchFunction():
            shape = tensor.shape
        dims = self.capture.dims(tensor)
        return torch.Size(
            Size(size, DimSize(dim), self.noted) if any(not axis.is_fixed for axis in dim) else size
            for size, dim in zip(shape, dims, strict=True)
        )

    def _fix(self, number: object, dim: Dim, where: str) -> None:
        """Note that a number given to a function is the size of a dim."""
        if isinstance(number, Size):
            self.ties.append(Tie(number.source, dim, where))
        elif isinstance(number, int) and number > 1:
            self.capture.labels.block(dim, f"its size {number} is written in the code ({where})")


def _follows(number: object) -> bool:
    """Whether a number will be another one when the size that it stands for has changed."""
    return isinstance(number, Size) or (isinstance(number, int) and number == -1)


Given = Callable[[tuple[Any, ...], dict[str, Any]], Sequence[object]]


def _shape_from(position: int, *names: str) -> Given:
    """Numbers that stand for the whole shape of the result, as one list or one by one."""

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        rest: Any = args[position:] or next((kwargs[name] for name in names if name in kwargs), ())
        if isinstance(rest, tuple) and rest and isinstance(rest[0], list | tuple):
            rest = rest[0]
        return list(rest) if isinstance(rest, list | tuple) else [rest]

    return given


def _one_from(position: int, name: str) -> Given:
    """One number, or a list of them."""

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
        found = args[position] if len(args) > position else kwargs.get(name)
        if found is None:
            return []
        return list(found) if isinstance(found, list | tuple) else [found]

    return given


_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_CUTS = frozenset({"__getitem__", "__setitem__", "narrow"})


def _between_boundaries(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[object]:
    """Sizes of the parts of ``tensor_split``, which takes where parts end; the last part is what is left."""
    found = next((kwargs[name] for name in ("indices_or_sections", "indices", "sections") if name in kwargs), None)
    found = args[1] if len(args) > 1 else found
    if not isinstance(found, list | tuple):
        return [-1]
    starts = [0, *found[:-1]]
    return [*(end - start for start, end in zip(starts, found, strict=True)), -1]


_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_ARITHMETIC = frozenset(
    (
        *("add", "radd", "sub", "rsub", "subtract", "mul", "rmul", "multiply", "div", "rdiv", "truediv", "rtruediv"),
        *("divide", "true_divide", "floor_divide", "pow", "rpow", "remainder", "fmod", "lerp", "clamp", "fill"),
        *("floordiv", "rfloordiv", "mod", "rmod", "float_power", "clamp_min", "clamp_max", "clip", "where"),
        *("addcmul", "addcdiv", "addmm", "addmv", "addbmm", "baddbmm", "masked_fill", "scalar_tensor"),
        *("full", "full_like", "new_full", "tensor", "as_tensor", "asarray", "new_tensor"),
    )
)
_MADE_OF_NUMBERS = frozenset({"tensor", "as_tensor", "asarray", "new_tensor"})
_SHAPES: dict[str, Given] = {
    **dict.fromkeys(("view", "reshape", "expand", "view_copy"), _shape_from(1, "size", "shape")),
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn"), _shape_from(0, "size")),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty"), _shape_from(1, "size")),
    **dict.fromkeys(("new_full",), _one_from(1, "size")),
    **dict.fromkeys(("full",), _one_from(0, "size")),
    **dict.fromkeys(("broadcast_to",), _one_from(1, "size")),
}
_PARTS: dict[str, Given] = {
    "chunk": lambda args, kwargs: [-1],  # a number of parts, whose sizes follow
    "split": _one_from(1, "split_size_or_sections"),
    "split_with_sizes": _one_from(1, "split_sizes"),
    "tensor_split": _between_boundaries,
}
_GROUPS: dict[str, Given] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _one_from(6, "groups")),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _one_from(6, "groups")),
    "group_norm": _one_from(1, "num_groups"),
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), _one_from(1, "groups")),
}
_LAST: dict[str, Given] = {
    **dict.fromkeys(("layer_norm", "rms_norm"), _one_from(1, "normalized_shape")),
}
_UNFLATTEN: dict[str, Given] = {"unflatten": _one_from(2, "sizes")}
_GIVEN: dict[str, Given] = {**_SHAPES, **_PARTS, **_GROUPS, **_LAST, **_UNFLATTEN}


def _placed(
    name: str, capture: Capture, numbers: Sequence[object], args: tuple[Any, ...], out: Any
) -> Iterator[tuple[object, Dim]]:
    """Each number with the dim that it fixes."""
    results = tensors_in(out)
    if name in _GROUPS:
        if numbers and numbers[0] != 1 and capture.groups:
            yield numbers[0], (capture.groups[-1],)
    elif name in _PARTS:
        yield from _parts(capture, numbers, args, results)
    elif results:
        dims = capture.dims(results[0])
        if name in _LAST:
            yield from zip(numbers, dims[len(dims) - len(numbers) :], strict=True)
        elif name in _UNFLATTEN:
            start = args[1] % args[0].dim()
            yield from zip(numbers, dims[start : start + len(numbers)], strict=True)
        elif len(numbers) == len(dims):
            yield from zip(numbers, dims, strict=True)


def _parts(
    capture: Capture, numbers: Sequence[object], args: tuple[Any, ...], results: Sequence[Tensor]
) -> Iterator[tuple[object, Dim]]:
    """Sizes of the parts that a tensor is split into; one number stands for all but the last."""
    changed = next((d for d in range(args[0].dim()) if any(r.shape[d] != args[0].shape[d] for r in results)), None)
    if changed is None:
        return
    for result, number in zip(results, numbers if len(numbers) > 1 else [*numbers] * len(results), strict=False):
        if isinstance(number, int) and int(number) == result.shape[changed]:
            yield number, capture.dims(result)[changed]
