"""The table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from secateur.doctor.findings import Finding
from secateur.doctor.setup import Setup

__all__ = ["CHECKS", "Check", "check"]

Look = Callable[[Setup], Iterable[Finding]]
"""(the training setup) -> what is wrong with it. It must not change anything."""


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Args:
        code: The code of its findings.
        look: The function that looks.
        structural: Whether it looks at identities, shapes and graphs only, and at values only where those differ; such
            checks also run in `watch` and after `relink_`.
    """

    code: str
    look: Look
    structural: bool = False


CHECKS: dict[str, Check] = {}
"""Code -> check, in the order in which findings are shown."""


def check(code: str, *, structural: bool = False) -> Callable[[Look], Look]:
    """Register a check: one kind of thing that can be wrong with a training setup.

    Args:
        code: The code of its findings, short and hyphenated. A code that exists is replaced.
        structural: Whether it looks at identities, shapes and graphs only.

    Returns:
        The decorator for a function of a `Setup` that returns or yields findings with this code.

    Example:
        >>> from secateur.doctor import diagnose
        >>> import torch
        >>> @check("huge-lr")
        ... def huge_lr(setup):
        ...     '''A learning rate above 10.'''
        ...     for slot in setup.slots:
        ...         if slot.options["lr"] > 10:
        ...             yield Finding("huge-lr", (), "the learning rate is huge.", "", "training diverges.", "lr=0.1")
        ...             return
        >>> model = torch.nn.Linear(2, 1)
        >>> diagnose(model, torch.optim.SGD(model.parameters(), lr=100.0)).codes
        ('huge-lr',)
        >>> del CHECKS["huge-lr"]
    """

    def register(look: Look) -> Look:
        CHECKS[code] = Check(code, look, structural)
        return look

    return register
