"""Random: every entry is as likely to go as any other. The baseline that a score has to beat."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from secateur._errors import InvalidInputError

__all__ = ["random"]


def random(weights: Mapping[str, Tensor], *, seed: int = 0) -> dict[str, Tensor]:
    """Score every weight by an independent uniform number, ``s ~ U[0, 1)``.

    Each tensor has a generator of its own, seeded from `seed` and its dotted name. So the scores do not depend on the
    order of the tensors, on which others are pruned, on the device, the process or the global random state, and the
    global random state is left alone: every rank draws the same mask.

    Args:
        weights: Tensors of any shape and dtype by dotted name; only names, shapes and devices are used.
        seed: Any integer.

    Returns:
        float32 scores of the same names and shapes, on the same devices.

    Raises:
        InvalidInputError: `seed` is not an integer.

    Example:
        >>> from functools import partial
        >>> score = partial(random, seed=3)
        >>> first, again = (score({"fc.weight": torch.zeros(2, 4)})["fc.weight"] for _ in range(2))
        >>> first.shape, torch.equal(first, again)
        (torch.Size([2, 4]), True)
    """
    if not isinstance(seed, int):
        raise InvalidInputError("seed must be an integer.", seed=repr(seed))
    return {name: _uniform(weight.shape, seed, name).to(weight.device) for name, weight in weights.items()}


def _uniform(shape: torch.Size, seed: int, name: str) -> Tensor:
    """Uniform numbers that depend on the arguments only; drawn on the CPU, whose generator is the same everywhere."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device="cpu").manual_seed(int.from_bytes(digest, "little"))
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
