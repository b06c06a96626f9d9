"""The modules of a compressed model: a weight in a packed format, and the product that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from secateur import _compat
from secateur._errors import InvalidInputError, ShapeError, UnsupportedError
from secateur.runtime import calls
from secateur.runtime.formats import CONV_FORMATS, LINEAR_FORMATS, Geometry, Parts
from secateur.runtime.formats._format import Bound

__all__ = ["SparseConv2d", "SparseLayer", "SparseLinear", "multiplied"]

_MOST = 1 << 31
"""Strides and such are smaller: the kernels compute with them."""


class SparseLayer(nn.Module):
    """A layer of a compressed model. It is for inference on the CPU.

    Args:
        format: Name of the format of the weight.
        parts: The packed weight.
        shape: Shape of the weight.
        bias: Its bias, or none.
        relu: Negative outputs become zero.
        dtype: Dtype of inputs and outputs; arithmetic is in float32.

    Raises:
        ShapeError: The bias does not belong to the weight.
    """

    def __init__(
        self, format: str, parts: Parts, shape: torch.Size, bias: Tensor | None, *, relu: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        if bias is not None and bias.shape != shape[:1]:
            raise ShapeError("the bias of a layer has another shape.", bias=tuple(bias.shape), weight=tuple(shape))
        self.format, self.shape, self.relu, self.dtype = format, torch.Size(shape), relu, dtype
        self.num_nonzero = int(torch.count_nonzero(self._table()[format].unpack(parts, self.shape)))
        self.num_parts = len(parts)
        for i, part in enumerate(parts):
            self.register_buffer(f"part{i}", part, persistent=False)
        self.register_buffer("float_bias", None if bias is None else bias.float(), persistent=False)
        self._product: Bound | None = None
        self.eval()

    def _table(self) -> dict[str, Any]:
        """The formats of this kind of layer."""
        raise NotImplementedError

    @property
    def parts(self) -> Parts:
        """The packed weight."""
        return tuple(self.get_buffer(f"part{i}") for i in range(self.num_parts))

    @property
    def weight(self) -> Tensor:
        """The dense weight, made anew: slow, for code that reads a layer's weight itself."""
        unpacked: Tensor = self._table()[self.format].unpack(self.parts, self.shape)
        return unpacked.to(self.dtype)

    @property
    def bias(self) -> Tensor | None:
        """The bias in the layer's dtype."""
        bias: Tensor | None = self._buffers["float_bias"]
        return None if bias is None else bias.to(self.dtype)

    @property
    def copied_bytes(self) -> int:
        """Memory beside the buffers: oneDNN's copy of a dense weight, which is there from the first call on."""
        return 4 * self.shape.numel() if self._table()[self.format].is_dense else 0

    def profile_counts(self) -> tuple[int, int]:
        """Number of parameters that the dense layer has, and of those that are not zero."""
        bias = self._buffers["float_bias"]
        return self.shape.numel() + (0 if bias is None else bias.numel()), self.num_nonzero + (
            0 if bias is None else int(torch.count_nonzero(bias))
        )

    def train(self, mode: bool = True) -> Self:
        """Refuse to be trained."""
        if mode:
            raise UnsupportedError(
                "a compressed model is for inference: its packed weights have no gradients.",
                fix="train the model that it was made of, and compress that again",
            )
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Refuse another dtype or device, which the packed form does not have; anything else leaves it as it is."""
        probe = torch.empty(0, dtype=self.dtype)
        moved = fn(probe)
        if moved.dtype != probe.dtype or moved.device != probe.device:
            raise UnsupportedError(
                "a compressed layer stays in the dtype and on the device that it was made for.",
                made_for=f"{probe.dtype} on {probe.device}",
                asked=f"{moved.dtype} on {moved.device}",
                fix="convert the model that it was made of, and compress that again",
            )
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Give the dense weight, so that what saves a part of the model by itself saves all of it."""
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Refuse other values than those that were packed."""
        raise UnsupportedError(
            "other weights cannot be loaded into a compressed model.",
            fix="load them into the model that it was made of, and compress that again",
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own product: this one points into memory."""
        return {**self.__dict__, "_product": None}

    def _refuse_absent(self) -> None:
        """Refuse to be bound where what the format needs is not, as in a pickle from another machine."""
        each = self._table()[self.format]
        absence = "" if each.is_dense else each.absence()
        if absence:
            raise UnsupportedError(
                f"the format {self.format!r} cannot be computed here: {absence}",
                fix="fast.save(path) where it was made and load_compressed(path) here, which takes another format",
            )

    def _admitted(self, x: Tensor, width: int, dim: int) -> Tensor:
        """An input in the layer's dtype, where autocast has given it another one; otherwise say why it does not fit."""
        name = type(self).__name__
        if x.layout is not torch.strided:
            raise InvalidInputError(f"{name} takes dense tensors.", input=x.layout, fix="x.to_dense()")
        if torch.is_autocast_enabled("cpu") and x.is_floating_point():
            x = x.to(self.dtype)
        if x.device.type != "cpu":
            raise InvalidInputError(f"{name} is on the CPU, and its input is not.", input=x.device)
        if x.dtype != self.dtype:
            raise InvalidInputError(f"{name} was given another dtype.", wanted=self.dtype, input=x.dtype)
        if x.dim() == 0 or x.shape[dim] != width:
            raise ShapeError(
                f"{name} was given an input of another width.",
                wanted=width,
                input=tuple(x.shape),
                fix="a compressed model takes what the dense one takes",
            )
        if not (x.requires_grad and torch.is_grad_enabled()) and not _compat.has_tangent(x):
            return x
        raise UnsupportedError(
            "cannot train through a compressed layer: it gives no gradients.",
            fix="run it under torch.inference_mode() or torch.no_grad(), or on x.detach()",
        )


class SparseLinear(SparseLayer):
    """A linear layer with a packed weight; see `SparseLayer`. `transposed`: its dense weight has the inputs first."""

    def __init__(
        self,
        format: str,
        parts: Parts,
        shape: torch.Size,
        bias: Tensor | None,
        *,
        relu: bool,
        dtype: torch.dtype,
        transposed: bool = False,
    ) -> None:
        super().__init__(format, parts, shape, bias, relu=relu, dtype=dtype)
        self.transposed = transposed
        self.out_features, self.in_features = self.shape

    def _table(self) -> dict[str, Any]:
        return LINEAR_FORMATS

    @property
    def weight(self) -> Tensor:
        """See `SparseLayer.weight`."""
        return super().weight.t() if self.transposed else super().weight

    def forward(self, x: Tensor) -> Tensor:
        """Multiply ``(…, inputs)`` to ``(…, outputs)``."""
        x = self.admitted(x)
        return self._op(x) if calls.is_watched(x) else multiplied(x, self.product, self.in_features, self.out_features)

    def admitted(self, x: Tensor) -> Tensor:
        """An input that the layer can take; otherwise say why it cannot."""
        if (
            x.dtype is not self.dtype
            or not x.is_cpu
            or x.dim() == 0
            or x.shape[-1] != self.in_features
            or x.layout is not torch.strided
            or (x.requires_grad and torch.is_grad_enabled())
            or _compat.has_tangent(x)
        ):
            return self._admitted(x, self.in_features, -1)
        return x

    @property
    def product(self) -> Bound:
        """The product of float32 rows, made when it is first asked for."""
        return self._product or self._bind()

    def _op(self, x: Tensor) -> Tensor:
        """The same as an op that a graph can hold."""
        rows = x.reshape(-1, self.in_features).float()
        bias = self._buffers["float_bias"]
        if LINEAR_FORMATS[self.format].is_dense:
            y = functional.linear(rows, self.parts[0].float(), bias)
            y = y.relu() if self.relu else y
        else:
            y = calls.linear(rows, list(self.parts), bias, list(self.shape), self.format, self.relu)
        return y.to(self.dtype).view(*x.shape[:-1], self.out_features)

    def _bind(self) -> Bound:
        """The product, made at the first call."""
        self._refuse_absent()
        bias = self._buffers["float_bias"]
        self._product = LINEAR_FORMATS[self.format].bind(self.parts, self.shape, bias, self.relu)
        return self._product

    def extra_repr(self) -> str:
        """Sizes, format and share of zeros, as `print(model)` shows them."""
        return f"{self.in_features}, {self.out_features}, {_described(self)}"


class SparseConv2d(SparseLayer):
    """A 2-D convolution of one group with a packed weight; see `SparseLayer`.

    Raises:
        InvalidInputError: The geometry has a stride or a dilation below 1, a padding below 0, or one without end.
    """

    def __init__(
        self,
        format: str,
        parts: Parts,
        shape: torch.Size,
        bias: Tensor | None,
        *,
        relu: bool,
        dtype: torch.dtype,
        geometry: Geometry,
    ) -> None:
        steps, edges = (*geometry.stride, *geometry.dilation), geometry.padding
        if not all(isinstance(n, int) and n < _MOST for n in (*steps, *edges)) or min(steps) < 1 or min(edges) < 0:
            raise InvalidInputError("no convolution moves like this.", **geometry._asdict())
        super().__init__(format, parts, shape, bias, relu=relu, dtype=dtype)
        self.geometry = geometry
        self.out_channels, self.in_channels = self.shape[:2]
        self.stride, self.padding, self.dilation = geometry
        self.kernel_size, self.groups = tuple(self.shape[2:]), 1
        sides = zip(self.padding, self.dilation, self.kernel_size, strict=True)
        self._least = [step * (window - 1) + 1 - 2 * pad for pad, step, window in sides]

    def _table(self) -> dict[str, Any]:
        return CONV_FORMATS

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``(batch, inputs, height, width)``, or one image without the batch."""
        shape = x.shape
        if len(shape) not in (3, 4):
            raise ShapeError("SparseConv2d takes images, in a batch or one alone.", input=tuple(shape))
        if (
            x.dtype is not self.dtype
            or not x.is_cpu
            or shape[-3] != self.in_channels
            or x.layout is not torch.strided
            or (x.requires_grad and torch.is_grad_enabled())
            or _compat.has_tangent(x)
        ):
            x = self._admitted(x, self.in_channels, -3)
        if shape[-2] < self._least[0] or shape[-1] < self._least[1]:
            raise ShapeError("the image is smaller than the window.", image=tuple(shape), window=self.kernel_size)
        images = x if len(shape) == 4 else x.unsqueeze(0)
        if self.dtype is not torch.float32:
            images = images.float()
        if calls.is_watched(x):
            y = self._op(images)
        else:
            _refuse_freed(images)
            images = images.contiguous(memory_format=CONV_FORMATS[self.format].order)
            y = _without_autocast(self._product or self._bind(), images)
        if self.dtype is not torch.float32:
            y = y.to(self.dtype)
        return y if len(shape) == 4 else y.squeeze(0)

    def _op(self, images: Tensor) -> Tensor:
        """The same as an op that a graph can hold."""
        bias = self._buffers["float_bias"]
        if CONV_FORMATS[self.format].is_dense:
            y = functional.conv2d(images, self.parts[0].float(), bias, *self.geometry)
            return y.relu() if self.relu else y
        geometry = [list(each) for each in self.geometry]
        y = calls.conv2d(images, list(self.parts), bias, list(self.shape), self.format, self.relu, *geometry)
        return cast(Tensor, y)

    def _bind(self) -> Bound:
        """The product, made at the first call."""
        self._refuse_absent()
        bias = self._buffers["float_bias"]
        self._product = CONV_FORMATS[self.format].bind(self.parts, self.shape, bias, self.relu, self.geometry)
        return self._product

    def extra_repr(self) -> str:
        """Sizes, format and share of zeros, as `print(model)` shows them."""
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{sizes}, padding={self.padding}, {_described(self)}"


def multiplied(x: Tensor, product: Bound, inputs: int, outputs: int) -> Tensor:
    """The product of ``(…, inputs)``, in its dtype, with rows in any layout."""
    rows = x if x.dim() == 2 else x.reshape(-1, inputs)
    if x.dtype is not torch.float32:
        rows = rows.float()
    if not rows.is_contiguous():
        rows = rows.contiguous()
    _refuse_freed(rows)
    y = _without_autocast(product, rows)
    if x.dtype is not torch.float32:
        y = y.to(x.dtype)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], outputs)


def _without_autocast(product: Bound, x: Tensor) -> Tensor:
    """The product in float32: what one returns another may read as that, without looking."""
    if not torch.is_autocast_enabled("cpu"):
        return product(x)
    with torch.autocast("cpu", enabled=False):
        return product(x)


def _refuse_freed(x: Tensor) -> None:
    """Refuse a tensor whose memory was given back, as sharded and offloaded training does."""
    if x.data_ptr() == 0 and x.numel():
        raise InvalidInputError("the input has a shape and no memory: its storage was freed.", shape=tuple(x.shape))


def _described(layer: SparseLayer) -> str:
    """Format and sparsity of a layer."""
    sparsity = 1 - layer.num_nonzero / max(1, layer.shape.numel())
    return f"format={layer.format!r}, sparsity={sparsity:.2f}, relu={layer.relu}"
