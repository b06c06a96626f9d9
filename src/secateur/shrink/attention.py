"""Sizes of an attention module with free heads: only the width of its inputs is recorded by the shapes."""

from __future__ import annotations

from secateur.graph.heads import FreeHeadsAttention
from secateur.surgery import size_rule
from secateur.surgery.sizes import Shapes

__all__: list[str] = []


@size_rule(FreeHeadsAttention)
def _free_heads(module: FreeHeadsAttention, shapes: Shapes) -> dict[str, object]:
    """The width of the input; the number and width of heads are numbers in the code and follow as such."""
    fused = "in_proj_weight" in shapes
    query, key, value = (
        shapes.size("in_proj_weight" if fused else f"{part}_proj_weight", 1) for part in ("q", "k", "v")
    )
    return {"embed_dim": query, "kdim": key, "vdim": value}
