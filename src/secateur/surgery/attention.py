"""nn.MultiheadAttention: whole heads go, from query, key, value and the output projection at once.

Its width is recorded once: the input, all heads together and the output are equally wide, and a head is the width
divided by their number. So heads can only go together with as many positions of the input and of the output; these may
be others than the heads' own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from secateur._errors import ShapeError
from secateur.surgery.recurrent import kept_units
from secateur.surgery.shapes import Shapes
from secateur.surgery.sizes import size_rule

__all__ = ["is_whole"]

_FIX = "resize the rows and columns of all projections and their biases in one transaction, the same heads everywhere"


def is_whole(positions: Tensor, width: int) -> bool:
    """Whether positions come in whole heads: each run of `width` of them starts at a multiple of `width`.

    Example:
        >>> is_whole(torch.tensor([4, 5, 6, 7]), 4), is_whole(torch.tensor([2, 3, 4, 5]), 4)
        (True, False)
    """
    if positions.numel() % width:
        return False
    heads = positions.view(-1, width)
    whole = heads[:, :1] + torch.arange(width, device="cpu")
    return torch.equal(heads, whole) and not bool((heads[:, 0] % width).any())


@size_rule(nn.MultiheadAttention)
def _attention(module: nn.MultiheadAttention, shapes: Shapes) -> dict[str, object]:
    """in_proj (3 · embed, embed) or q, k, v (embed, …), out_proj (embed, embed)."""
    heads = shapes.positions("out_proj.weight", 1)
    for name, rows in _head_rows(shapes):
        if not torch.equal(rows, heads):
            raise ShapeError(
                f"{name!r} of nn.MultiheadAttention would keep other positions than the columns of 'out_proj.weight'.",
                kept=rows[:8].tolist(),
                out_proj=heads[:8].tolist(),
                fix=_FIX,
            )
    embed = heads.numel()
    widths = {name: shape for name, shape in _widths(shapes) if shape != embed}
    if widths:
        raise ShapeError(
            "nn.MultiheadAttention has one width for its input, its heads together and its output.",
            heads=embed,
            disagreeing=widths,
            fix=_FIX,
        )
    if not is_whole(heads, module.head_dim):
        raise ShapeError(
            "parts of heads would be kept, which changes the scale of attention.",
            head_dim=module.head_dim,
            num_heads=module.num_heads,
            fix="keep whole blocks of head_dim positions",
        )
    return {
        "embed_dim": embed,
        "kdim": shapes.size("k_proj_weight", 1) or embed,
        "vdim": shapes.size("v_proj_weight", 1) or embed,
        "num_heads": embed // module.head_dim,
    }


def _head_rows(shapes: Shapes) -> Iterator[tuple[str, Tensor]]:
    """Every other tensor that has one position for each position of the heads, with those that stay."""
    for name in ("in_proj_weight", "in_proj_bias"):
        if name in shapes:
            yield name, kept_units(shapes, name, 3)
    for name, dim in (("q_proj_weight", 0), ("k_proj_weight", 0), ("v_proj_weight", 0), ("bias_k", 2), ("bias_v", 2)):
        if name in shapes:
            yield name, shapes.positions(name, dim)


def _widths(shapes: Shapes) -> Iterator[tuple[str, int]]:
    """Every size that has to equal the width of all heads together, by what it is."""
    for name, dim in (("in_proj_weight", 1), ("q_proj_weight", 1), ("out_proj.weight", 0), ("out_proj.bias", 0)):
        size = shapes.size(name, dim)
        if size is not None:
            yield f"{name} dim {dim}", size
