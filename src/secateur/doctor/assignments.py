"""Uses of ``.data`` of parameters: the ways to change shape and values of which torch tells nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["WatchedData"]

_DATA: Any = torch._C.TensorBase.data


class WatchedData:
    """Takes the place of ``nn.Parameter.data`` until it is removed, and tells of its uses.

    Args:
        reshaped: Called with a parameter that was given data of another shape.
        used: Called with a parameter that was given other data, or whose data was asked for.

    Example:
        >>> watched = WatchedData(lambda p: print("now", tuple(p.shape)), lambda p: print("used", tuple(p.shape)))
        >>> weight = nn.Parameter(torch.zeros(4, 3))
        >>> weight.data = torch.ones(4, 3)
        used (4, 3)
        >>> weight.data = weight.data[:, :2]
        used (4, 3)
        now (4, 2)
        >>> watched.remove()
    """

    def __init__(self, reshaped: Callable[[Tensor], object], used: Callable[[Tensor], object]) -> None:
        self._reshaped, self._used = reshaped, used
        nn.Parameter.data = self  # type: ignore[assignment]

    def __get__(self, parameter: nn.Parameter | None, kind: type | None = None) -> Any:
        """The data, as ever."""
        if parameter is None:
            return self
        if not torch.compiler.is_compiling():
            self._used(parameter)
        return _DATA.__get__(parameter)

    def __set__(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Set the data."""
        known = type(parameter) is nn.Parameter  # one without a shape yet is of another class
        before = parameter.shape if known else None
        _DATA.__set__(parameter, value)
        if known and not torch.compiler.is_compiling():
            (self._used if parameter.shape == before else self._reshaped)(parameter)

    def remove(self) -> None:
        """Give ``nn.Parameter.data`` back."""
        if vars(nn.Parameter).get("data") is self:
            del nn.Parameter.data
