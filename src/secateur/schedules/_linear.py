"""Linear: the same change in every step."""

from __future__ import annotations

from secateur.schedules._ramp import Ramp

__all__ = ["linear"]


def linear(initial: float, final: float, *, begin_step: int, end_step: int) -> Ramp:
    r"""Go from one value to another by the same amount in every step.

    .. math:: s_t = s_i + (s_f - s_i)\,\frac{t - t_0}{t_1 - t_0}

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
        >>> schedule = linear(0.0, 0.8, begin_step=0, end_step=400)
        >>> [schedule(step) for step in (0, 100, 400, 500)]
        [0.0, 0.2, 0.8, 0.8]
    """
    return Ramp(initial, final, begin_step, end_step, _shape)


def _shape(way: float) -> float:
    """As far in value as in time."""
    return way
