"""Memory that stays with the process, so that variants which are timed in turns meet the same allocator."""

from __future__ import annotations

import ctypes

_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # of malloc.h


def keep_freed_memory() -> str:
    """Have glibc keep what is freed; a line that says whether it does.

    It gives the end of its heap back to the system when that is free, and whether it is depends on what else lies
    there: with several trainings in one process, on the others. Pages that come back cost more than a small step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1)):
        return "freed memory goes back to the system as the allocator has it"
    return "freed memory stays with the process, for all variants (mallopt: no mmap, no trimming)"
