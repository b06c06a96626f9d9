"""The module that `compress` returns."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from secateur._errors import UnsupportedError
from secateur.runtime.origins import Origin
from secateur.runtime.recipe import Recipe
from secateur.runtime.table import CompressionReport

__all__ = ["Compressed"]


class Compressed(nn.Module):
    """A model for inference whose sparse layers are packed; made by `compress` and `load_compressed`.

    It is called like the model that it was made of, and has its attributes and methods.

    Args:
        model: The model inside, ``fast.model``.
        recipe: What was done to it.
        origin: What it was.
        report: What was measured; none if it was loaded without being measured.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, origin: Origin, report: CompressionReport | None) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.origin = origin
        self.report = report
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        return self.model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the wrapper does not have the model may have: ``generate``, ``config``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the model has there and the wrapper has not."""
        inside = self.__dict__.get("_modules", {}).get("model")
        if inside is None or name in self.__dict__ or name in self._modules or not hasattr(inside, name):
            super().__setattr__(name, value)
        else:
            setattr(inside, name, value)

    def train(self, mode: bool = True) -> Self:
        """Refuse to be trained."""
        if mode:
            raise UnsupportedError(
                "a compressed model is for inference: its packed weights have no gradients.",
                fix="train the model that it was made of, and compress that again",
            )
        return super().train(mode)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Refuse gradients."""
        return super().requires_grad_(False) if not requires_grad else self.train()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Refuse another dtype or device for the whole, before any part has been moved."""
        probe = next((t for t in (*self.parameters(), *self.buffers()) if t.is_floating_point()), torch.empty(0))[:0]
        moved = fn(probe.detach().clone())
        if moved.device != probe.device or moved.dtype != probe.dtype:
            raise UnsupportedError(
                "a compressed model stays in the dtype and on the device that it was made for.",
                asked=f"{moved.dtype} on {moved.device}",
                fix="convert the model that it was made of, and compress that again",
            )
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: packed weights are in no state dict."""
        raise UnsupportedError(
            "a compressed model has no state dict: its packed weights would be missing.", fix="fast.save(path)"
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to one safetensors file: each sparse tensor as one bit an entry and its values.

        At 90 % zeros that is about 13 % of the dense file. `load_compressed` reads it.

        Args:
            path: Where to.

        Raises:
            UnsupportedError: The model's state holds something else than tensors.
        """
        from secateur.runtime.files import write

        write(self, path)

    def to_dense(self) -> nn.Module:
        """Make a plain model for inference of it: ordinary layers, with zeros where nothing was kept.

        Packed layers are nn.Linear, nn.Conv2d and transformers' Conv1D again, attentions nn.MultiheadAttention, or
        what `shrink_` makes of it where heads have gone. Units that were removed stay so, and norms stay folded. It
        returns what the compressed model does, to rounding; `torch.onnx.export` takes it.

        Returns:
            A new model that shares no memory with this one, in evaluation mode, without gradients.

        Example:
            >>> from secateur import compress
            >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
            >>> fast = compress(model, torch.randn(1, 64), {"0.weight": torch.rand(256, 64) > 0.9})
            >>> fast.to_dense()
            Sequential(
              (0): Linear(in_features=64, out_features=256, bias=True)
              (1): ReLU()
              (2): Linear(in_features=256, out_features=10, bias=True)
            )
        """
        from secateur.runtime.dense import dense_model

        return dense_model(self)

    def extra_repr(self) -> str:
        """One line of the report."""
        return "" if self.report is None else f"{self.report.speedup:.2f}x"
