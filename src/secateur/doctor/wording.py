"""How tensors are written in findings: as lists of names, as shapes, as the expression that a user would type."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["expression", "listed", "shape_of"]


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names joined by commas, the first few where there are many.

    Example:
        >>> listed(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def expression(name: str) -> str:
    """The expression for a dotted name.

    Example:
        >>> expression("encoder.0.weight")
        'model.encoder[0].weight'
    """
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part)


def shape_of(tensor: Tensor) -> list[int]:
    """The shape as a plain list, as findings keep it."""
    return list(tensor.shape)
