"""The floating-point scalars that ops are given, in which sizes may hide that became values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from secateur._compat import is_fake

__all__ = ["DATA", "are_close", "scalars_of"]

DATA = (math.nan,)
"""In place of scalars: the op hands a value of a tensor to the code, so what scalars follow depends on data."""


def scalars_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> tuple[float, ...]:
    """The floating-point scalars of one op, those included that torch computes from a size, or makes a tensor of.

    Args:
        name: The op without overload.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        out: Its result.

    Returns:
        The scalars in their order; `DATA` for an op that reads one off a tensor.
    """
    if name == "aten._local_scalar_dense" and isinstance(args[0], Tensor) and args[0].is_floating_point():
        return DATA
    given = tuple(value for value in (*args, *kwargs.values()) if type(value) is float)
    if "scaled_dot_product" in name and kwargs.get("scale") is None:
        given += (float(args[0].shape[-1]) ** -0.5,)
    if name == "aten.lift_fresh" and out.numel() <= _FEW and not (out.is_complex() or is_fake(out)):
        given += tuple(map(float, out.flatten().tolist()))
    return given


_FEW = 16
"""So many numbers written into a tensor may be sizes; longer ones are tables."""


def are_close(old: Iterable[float], new: Iterable[float]) -> bool:
    """Whether scalars are the same, but for rounding."""
    pairs = zip(old, new, strict=True)
    return all(a == b or math.isclose(a, b, rel_tol=1e-5) or (math.isnan(a) and math.isnan(b)) for a, b in pairs)
