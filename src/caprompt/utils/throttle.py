"""Limiting an action, such as writing a checkpoint, to a share of wall time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Limit of an action to a `share` of the time since it last ran; other requests are skipped.

    >>> times = iter([0.0, 1.0,  5.0,  21.0, 22.0])  # runs from 0 to 1, is skipped at 5, and runs from 21 to 22
    >>> throttle = Throttle(share=0.05, clock=lambda: next(times))
    >>> [throttle(lambda: None) for _ in range(3)]
    [True, False, True]
    """

    def __init__(self, share: float = 0.05, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = share
        self.clock = clock
        self.next_due = float("-inf")

    def __call__(self, action: Callable[[], object]) -> bool:
        """Run the action if it is due; return whether it ran."""
        start = self.clock()
        if start < self.next_due:
            return False
        action()
        end = self.clock()
        self.next_due = end + (end - start) / self.share
        return True
