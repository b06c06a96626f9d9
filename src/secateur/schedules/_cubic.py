"""Cubic: much at first, less and less later."""

from __future__ import annotations

from secateur.schedules._ramp import Ramp

__all__ = ["cubic"]


def cubic(initial: float, final: float, *, begin_step: int, end_step: int) -> Ramp:
    r"""Go from one value to another fast at first, while there is much to remove, and slowly in the end.

    .. math:: s_t = s_f + (s_i - s_f) \left(1 - \frac{t - t_0}{t_1 - t_0}\right)^3

    Args:
        initial: :math:`s_i`, the value up to `begin_step`.
        final: :math:`s_f`, the value from `end_step` on.
        begin_step: :math:`t_0`, in optimizer steps.
        end_step: :math:`t_1`, in optimizer steps: the paper's :math:`t_0 + n \Delta t`.

    Returns:
        The schedule: a function of the step.

    Raises:
        InvalidInputError: The end is before the begin, or a value is no finite number.

    Example:
        >>> schedule = cubic(0.0, 0.8, begin_step=0, end_step=400)
        >>> [round(schedule(step), 3) for step in (0, 100, 200, 400, 500)]
        [0.0, 0.463, 0.7, 0.8, 0.8]

    References:
        Zhu and Gupta 2017, "To prune, or not to prune: exploring the efficacy of pruning for model compression",
        equation 1.
    """
    return Ramp(initial, final, begin_step, end_step, _shape)


def _shape(way: float) -> float:
    """What is left of the way shrinks by the cube."""
    return 1.0 - (1.0 - way) ** 3
