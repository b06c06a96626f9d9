"""The floating-point scalars that ops are given: a size that became a value shows as another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from secateur.graph.scalars import are_close, scalars_of

__all__ = ["Numbers", "differing"]

Used = tuple[str, tuple[float, ...]]
"""An op and the scalars that it was given."""


class Numbers(TorchDispatchMode):
    """Writes down the floating-point scalars that ops are given, op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Used] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the op and note its scalars."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(func.overloadpacket)
        self.used.append((name, scalars_of(name, args, kwargs, out)))
        return out


def differing(before: Sequence[Used], after: Sequence[Used]) -> tuple[str, ...]:
    """Ops with other scalars than before; none where other ops were run, since the runs cannot be laid side by side."""
    if [name for name, _ in before] != [name for name, _ in after]:
        return ()
    return tuple(
        f"{name}: {list(old)} -> {list(new)}"
        for (name, old), (_, new) in zip(before, after, strict=True)
        if len(old) == len(new) and not are_close(old, new)
    )
