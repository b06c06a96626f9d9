"""Cosine: slowly at both ends."""

from __future__ import annotations

import math

from secateur.schedules._ramp import Ramp

__all__ = ["cosine"]


def cosine(initial: float, final: float, *, begin_step: int, end_step: int) -> Ramp:
    r"""Go from one value to another along half a wave.

    .. math:: s_t = s_f + \frac{s_i - s_f}{2} \left(1 + \cos \pi\,\frac{t - t_0}{t_1 - t_0}\right)

    Args:
        initial: :math:`s_i`, the value up to `begin_step`.
        final: :math:`s_f`, the value from `end_step` on.
        begin_step: :math:`t_0`, in optimizer steps.
        end_step: :math:`t_1`, in optimizer steps.

    Returns:
        The schedule: a function of the step.

    Raises:
        InvalidInputError: The end is before the begin, or a value is no finite number.

    Example:
        >>> schedule = cosine(0.3, 0.0, begin_step=0, end_step=400)
        >>> [round(schedule(step), 3) for step in (0, 100, 200, 400, 500)]
        [0.3, 0.256, 0.15, 0.0, 0.0]

    References:
        Evci et al. 2020, "Rigging the lottery: making all tickets winners", section 3 (2), the decay of the fraction
        of updated connections.
    """
    return Ramp(initial, final, begin_step, end_step, _shape)


def _shape(way: float) -> float:
    """Half a wave from 0 to 1."""
    return (1.0 - math.cos(math.pi * way)) / 2.0
