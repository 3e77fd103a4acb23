"""Memory of this process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["pause_collection", "release_freed_memory"]


@contextmanager
def pause_collection() -> Iterator[None]:
    """Look for no garbage within the context, and never again among the objects that exist at its end.

    For imports: that of PyTorch makes 250,000 objects, which stay, and to look through them again and again takes a fifth of a
    second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


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
