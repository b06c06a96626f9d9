"""Masks against the weights that they are meant to hold at zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from secateur.doctor.findings import Finding
from secateur.doctor.registry import check
from secateur.doctor.setup import Setup
from secateur.doctor.wording import listed, shape_of


@check("drifted-mask")
def drifted_mask(setup: Setup) -> Iterator[Finding]:
    """Weights that their mask holds at zero, and that are not zero."""
    counts = {}
    for name, weight, mask in _pairs(setup):
        if weight.shape == mask.shape and not weight.is_meta:
            counts[name] = int((weight.detach() != 0).logical_and(~mask.to(weight.device).bool()).count_nonzero())
    found = {name: count for name, count in counts.items() if count}
    if found:
        names = tuple(found)
        shown = [f"{name} ({count})" for name, count in found.items()]
        yield Finding(
            "drifted-mask",
            names,
            f"{sum(found.values())} masked weights are not zero: {listed(shown)}.",
            "The mask was applied once, or before optimizer.step(): momentum and weight decay move masked weights even "
            "where their gradient is zero. Or the weight was replaced or loaded after the mask was set.",
            "The model is less sparse than its masks say.",
            "secateur.Masks(model).apply_()   # masks that prune_ put on the model: zeroes what was written to since\n"
            "masks = secateur.prune_(model, optimizer, sparsity=…)   # holds them through every step\n"
            "with torch.no_grad(): weight.masked_fill_(~mask, 0)   # by hand: after each optimizer.step()",
            data={"counts": found},
        )


@check("mask-shape")
def mask_shape(setup: Setup) -> Iterator[Finding]:
    """A mask of another shape than its parameter, or without one."""
    wrong = {name: (shape_of(w), shape_of(m)) for name, w, m in _pairs(setup) if w.shape != m.shape}
    lost = [name for name in setup.masks if _parameter(setup, name) is None]
    if wrong or lost:
        names = (*wrong, *lost)
        shown = [f"{n}: mask {tuple(m)}, parameter {tuple(w)}" for n, (w, m) in wrong.items()]
        yield Finding(
            "mask-shape",
            names,
            f"masks do not fit the model: {listed([*shown, *(f'{name}: no such parameter' for name in lost)])}.",
            "The model was cut or changed after the masks were made, or they belong to another model.",
            "These weights are not held at zero.",
            "masks = secateur.prune_(model, optimizer, sparsity=…)   # anew; secateur.resize_ makes masks follow",
            data={"shapes": {n: {"shape": w, "mask_shape": m} for n, (w, m) in wrong.items()}, "lost": lost},
        )


def _pairs(setup: Setup) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, parameter, mask) for every mask whose parameter exists."""
    for name, mask in setup.masks.items():
        parameter = _parameter(setup, name)
        if parameter is not None and isinstance(mask, torch.Tensor):
            yield name, parameter, mask


def _parameter(setup: Setup, name: str) -> Tensor | None:
    """The parameter of a mask, under any of its names."""
    if name in setup.parameters:
        return setup.parameters[name]
    return dict(setup.model.named_parameters(remove_duplicate=False)).get(name)
