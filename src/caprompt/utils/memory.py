"""Memory of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

__all__ = ["release_freed_memory"]


def release_freed_memory() -> None:
    """Return freed memory to the operating system: the GNU C library keeps it, for each thread, up to tens of megabytes apiece."""
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library or operating system
        return None
    return trim
