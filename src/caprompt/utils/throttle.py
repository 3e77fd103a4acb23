"""Doing something often, but never so often that it takes a noticeable part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Acts when asked to, unless acting would then take more than `share` of the time since it last acted.

    >>> moments = iter([0.0, 1.0,  5.0,  21.0, 22.0])  # acts from 0 to 1, is asked at 5 and at 21, and acts until 22
    >>> pace = Throttle(share=0.05, clock=lambda: next(moments))
    >>> [pace(lambda: None) for _ in range(3)]
    [True, False, True]
    """

    def __init__(self, share: float = 0.05, clock: Callable[[], float] = time.monotonic) -> None:
        self.share = share
        self.clock = clock
        self.next_due = float("-inf")

    def __call__(self, act: Callable[[], None]) -> bool:
        """Act, or let it be; tells which."""
        began = self.clock()
        if began < self.next_due:
            return False
        act()
        ended = self.clock()
        self.next_due = ended + (ended - began) / self.share
        return True
