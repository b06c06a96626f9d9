"""Layers that treat their channels in groups: each group keeps equally many channels, or goes as a whole.

A group that goes as a whole takes one off the recorded number of groups. A depthwise convolution is the case where
each group is one input channel.
"""

from __future__ import annotations

import torch
from torch import nn

from secateur._errors import ShapeError
from secateur.surgery.selection import Selection
from secateur.surgery.shapes import Shapes
from secateur.surgery.sizes import agreed, same_positions, size_rule

__all__ = ["kept_groups"]


def kept_groups(selection: Selection | None, groups: int) -> int:
    """Number of groups after a change of the channels.

    Args:
        selection: What happens to the channels, None for nothing.
        groups: Number of groups before; it divides the number of channels.

    Raises:
        ShapeError: Some groups would keep other numbers of channels than others.

    Example:
        >>> kept_groups(Selection(0, 6, torch.tensor([0, 2, 4])), groups=3)
        3
        >>> kept_groups(Selection(0, 6, torch.tensor([0, 1, 4, 5])), groups=3)
        2
    """
    if selection is None or groups == 1 or _grows_evenly(selection, groups):
        return groups
    per_group = torch.bincount(selection.keep // (selection.size // groups), minlength=groups)
    left = per_group[per_group > 0]
    width = int(left[0])
    if bool((left != width).any()) or selection.num_new % width:
        raise ShapeError(
            "every group must keep the same number of channels, or go as a whole.",
            groups=groups,
            kept_per_group=per_group[:16].tolist(),
            new=selection.num_new,
            fix=f"keep equally many of each {selection.size // groups} channels; new ones come as whole groups",
        )
    return left.numel() + selection.num_new // width


def _grows_evenly(selection: Selection, groups: int) -> bool:
    """Whether every group gets equally many new channels, each after old ones of the same group, and loses none."""
    if selection.order is None or selection.new_size % groups:
        return False
    owner = torch.where(selection.positions < selection.size, selection.positions // (selection.size // groups), -1)
    owner = owner.cummax(0).values
    return torch.equal(owner, torch.arange(groups, device="cpu").repeat_interleave(selection.new_size // groups))


@size_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(module: nn.Conv2d, shapes: Shapes) -> dict[str, object]:
    """Weight (out, in / groups, …), bias (out)."""
    if "weight" not in shapes:
        return {}
    groups = kept_groups(shapes.kept("weight", 0), module.groups)
    return {
        "out_channels": same_positions(shapes, "weight", "bias"),
        "in_channels": shapes["weight"][1] * groups,
        "groups": groups,
    }


@size_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _transposed_convolution(module: nn.ConvTranspose2d, shapes: Shapes) -> dict[str, object]:
    """Weight (in, out / groups, …), bias (out)."""
    if "weight" not in shapes:
        return {}
    inputs, width = shapes["weight"][:2]
    groups = kept_groups(shapes.kept("weight", 0), module.groups)
    return {
        "in_channels": inputs,
        "out_channels": agreed(width * groups, shapes.size("bias")),
        "groups": groups,
    }


@size_rule(nn.GroupNorm)
def _group_norm(module: nn.GroupNorm, shapes: Shapes) -> dict[str, object]:
    """Weight and bias (channels). The number of groups changes with the weight."""
    channels = same_positions(shapes, "weight", "bias")
    return {"num_channels": channels, "num_groups": kept_groups(shapes.kept("weight", 0), module.num_groups)}
