"""What several rules say of dims whose positions are numbers or are told by numbers."""

from __future__ import annotations

from collections.abc import Iterable

from secateur.graph.call import Call
from secateur.graph.labels import Dim, Dims, size_of

__all__ = ["aligned", "block_all"]


def block_all(call: Call, dims: Iterable[Dim], why: str) -> None:
    """Block several dims."""
    for dim in dims:
        call.block(dim, why)


def aligned(call: Call, one: Dims, other: Dims, *, but: int | None = None) -> None:
    """Dims are read together from their first positions on: equal where as long, otherwise their starts must stay."""
    for d, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if d == but:
            continue
        if size_of(mine) == size_of(theirs):
            call.equal(mine, theirs)
        else:
            block_all(call, (mine, theirs), f"{call.name} uses only the first positions of it")
