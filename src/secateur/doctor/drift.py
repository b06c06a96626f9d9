"""Weights that were exactly zero before a step and no longer are before the next: masks that were applied only once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from secateur.doctor.findings import Finding
from secateur.doctor.wording import listed
from secateur.masks.registry import mask_of

__all__ = ["Zeros"]

_LEAST, _MOST = 0.2, 0.9
"""Which part of a weight a mask has zeroed; more than that is an identity matrix or a start at zero, most often."""
_FEWEST = 121
"""Entries of a weight that is looked at: an identity matrix of that many has more zeros than `_MOST`."""


class Zeros:
    """Which entries of some weights are zero.

    Args:
        weights: The weights by dotted name; those that `prune_` masks, and those with few or hardly any but zeros, are
            left out.

    Example:
        >>> weight = torch.nn.Parameter(torch.rand(20, 20) + 1)
        >>> weight.data[::2] = 0.0
        >>> zeros = Zeros({"0.weight": weight})
        >>> list(zeros.lost({"0.weight": weight}))
        []
        >>> weight.data += 0.1
        >>> [finding.data for finding in zeros.lost({"0.weight": weight})]
        [{'counts': {'0.weight': 200}}]
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._zeros: dict[str, tuple[weakref.ref[Tensor], Tensor]] = {}
        for name, weight in weights.items():
            if _is_plain(weight) and mask_of(weight) is None:
                zero = weight.detach() == 0
                if _LEAST * weight.numel() <= int(zero.count_nonzero()) <= _MOST * weight.numel():
                    self._zeros[name] = weakref.ref(weight), zero

    def lost(self, weights: Mapping[str, Tensor]) -> Iterator[Finding]:
        """Say which weights have lost most of their zeros.

        Args:
            weights: The weights by dotted name, one optimizer step later.
        """
        counts = {}
        for name, (weight, zero) in self._zeros.items():
            now = weights.get(name)
            if now is not None and now is weight() and now.shape == zero.shape:
                moved = int((now.detach() != 0).logical_and(zero).count_nonzero())
                if 2 * moved > int(zero.count_nonzero()):
                    counts[name] = moved
        if counts:
            names = tuple(counts)
            shown = [
                f"{name} ({count} of {int(self._zeros[name][1].count_nonzero())})" for name, count in counts.items()
            ]
            yield Finding(
                "drifted-mask",
                names,
                f"weights that were exactly zero before the last step are not any more: {listed(shown)}.",
                "A mask was applied once, or pruned weights are trained on without their mask: each optimizer step "
                "moves all of them.",
                "The model is dense again. If these zeros were only a start, all is well.",
                "masks = secateur.prune_(model, optimizer, sparsity=…)   # holds them through every step\n"
                "with torch.no_grad(): weight.masked_fill_(~mask, 0)   # by hand: after each optimizer.step()",
                severity="warning",
                data={"counts": counts},
            )


def _is_plain(weight: Tensor) -> bool:
    """Whether it has enough values to look at."""
    values = weight.layout == torch.strided and not weight.is_meta
    return values and weight.dim() > 1 and weight.numel() >= _FEWEST
