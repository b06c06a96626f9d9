"""When a model becomes smaller: what fraction of the whole is gone after which cut."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from secateur._errors import InvalidInputError
from secateur.schedules import Curve, check_rising

__all__ = ["cuts_along"]


def cuts_along(curve: Curve, *, begin_step: int, end_step: int, num_cuts: int) -> dict[int, float]:
    """What fraction of the whole is gone after which step.

    Args:
        curve: Along what the fraction goes from 0 to 1, as a function of the number of cuts that have been made.
        begin_step: The first cut.
        end_step: The last one, if there are several; the others are evenly spaced between them.
        num_cuts: Number of cuts.

    Raises:
        InvalidInputError: The cuts do not fit, or the curve is none, falls, or does not end at 1.

    Example:
        >>> from secateur.schedules import linear
        >>> cuts_along(linear, begin_step=100, end_step=600, num_cuts=3)
        {100: 0.3333333333333333, 350: 0.6666666666666666, 600: 1.0}
    """
    given = (begin_step, end_step, num_cuts)
    are_counts = all(isinstance(number, Integral) and not isinstance(number, bool) for number in given)
    if not are_counts or not 1 <= begin_step <= end_step or not 1 <= num_cuts <= end_step - begin_step + 1:
        raise InvalidInputError(
            "the cuts must fit between the first and the last step, at most one a step.",
            begin_step=begin_step,
            end_step=end_step,
            num_cuts=num_cuts,
            fix="begin_step=100, end_step=600, num_cuts=8",
        )
    try:
        schedule = curve(0.0, 1.0, begin_step=0, end_step=int(num_cuts))
        gone = [float(schedule(cut)) for cut in range(int(num_cuts) + 1)]
    except TypeError as error:
        raise InvalidInputError(
            f"a curve makes a schedule that leads from one value to another: {error}.",
            fix="curve=secateur.schedules.cubic",
        ) from error
    check_rising(gone.__getitem__, range(len(gone)), what="what is gone")
    if gone[0] < 0.0 or abs(gone[-1] - 1.0) > 1e-9:
        raise InvalidInputError("what is gone must go from 0 to 1.", at_the_cuts=[round(value, 4) for value in gone])
    steps = np.round(np.linspace(begin_step, end_step, num_cuts)).astype(int).tolist()
    return dict(zip(steps, [*gone[1:-1], 1.0], strict=True))
