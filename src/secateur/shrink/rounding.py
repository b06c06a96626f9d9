"""How many units of a group may be left: a least number, multiples that a machine likes, multiples that an op needs."""

from __future__ import annotations

import math
from collections import Counter
from numbers import Integral

import numpy as np
import numpy.typing as npt
import torch

from secateur._errors import InvalidInputError
from secateur.graph.coupling import Coupling, Group
from secateur.graph.grouping import leaves

__all__ = ["AUTO", "RoundTo", "check_round_to", "counts_left", "multiple_of", "needed_steps"]

RoundTo = int | str | None
"""Positions of a kept dim are a multiple of this number; None: of nothing; ``"auto"``: of what is fast where it is."""

AUTO = "auto"

_CHANNELS_ON_CPU = 16  # convolutions of 33 to 48 channels all cost what 48 cost; matrix products cost what they have


def check_round_to(round_to: object) -> None:
    """Refuse what is no multiple.

    Raises:
        InvalidInputError: It is neither a positive integer, nor "auto", nor None.
    """
    is_count = isinstance(round_to, Integral) and not isinstance(round_to, bool) and int(round_to) > 0
    if not (round_to is None or round_to == AUTO or is_count):
        raise InvalidInputError(
            'round_to is a positive integer, or "auto" for what is fast on the device of the model.',
            round_to=repr(round_to),
            fix='round_to=16, round_to="auto", or round_to=None for any number',
        )


def multiple_of(group: Group, round_to: RoundTo, device: torch.device) -> int:
    """Of what the number of kept units of a group is to be a multiple.

    Where a unit takes several positions of a tensor (a head, a channel of each group of a convolution), fewer units
    make a multiple. What holds is the largest number that the group can be a multiple of.

    Args:
        group: The group.
        round_to: Multiple that the kept positions are to be; "auto" is 16 for channels of convolutions on a CPU, as
            measured there, and 1 elsewhere.
        device: Where the model is.

    Returns:
        A number of units; 1 for groups that are too small for any multiple.
    """
    if round_to == AUTO:
        round_to = _CHANNELS_ON_CPU if group.kind == "channels" and device.type == "cpu" else 1
    wanted = int(round_to or 1)
    multiples = {wanted // math.gcd(wanted, positions) for positions in group.footprint.values()}
    return max((multiple for multiple in multiples if multiple <= len(group.units)), default=1)


def needed_steps(coupling: Coupling) -> dict[int, int]:
    """How many units must go at a time, so that the dims of which an op needs a multiple of a number stay one.

    Args:
        coupling: The coupling.

    Returns:
        Number of units by number of the group; groups that may lose any number are left out.
    """
    needed: dict[int, int] = {}
    for dim, number in coupling.multiples:
        taken = Counter(
            unit for axis in dim for unit in leaves(coupling.solution, coupling.solution.classes(axis)).tolist()
        )
        touching = {
            place: taken[group.units[0]] for place, group in enumerate(coupling.groups) if group.units[0] in taken
        }
        for place, positions in touching.items():
            step = number // math.gcd(number, positions) if len(touching) == 1 else number
            needed[place] = math.lcm(needed.get(place, 1), step)
    return needed


def counts_left(number: int, *, min_units: int, multiple: int, step: int) -> npt.NDArray[np.int64]:
    """How many units of a group may be left when some have gone.

    Args:
        number: How many there are.
        min_units: How many stay at least.
        multiple: Of what those left are a multiple.
        step: Of what those gone are a multiple.

    Returns:
        Descending, all below `number`.

    Example:
        >>> counts_left(40, min_units=2, multiple=16, step=1).tolist()
        [32, 16]
    """
    left = np.arange(number - 1, max(min_units, 1) - 1, -1, dtype=np.int64)
    possible: npt.NDArray[np.int64] = left[(left % multiple == 0) & ((number - left) % step == 0)]
    return possible
