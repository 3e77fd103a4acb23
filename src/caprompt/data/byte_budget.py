"""A limit on the memory that threads take at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock

__all__ = ["ByteBudget"]


class ByteBudget:
    """Memory that threads share: each reserves what it will take, and waits while there is not enough left.

    A reservation of more than the whole budget is granted when nothing else is reserved.

    >>> budget = ByteBudget(100)
    >>> with budget.reserve(70), budget.reserve(30):
    ...     budget.used_bytes
    100
    >>> budget.used_bytes
    0
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting = 0  # threads
        self._changed = Condition(Lock())

    @contextmanager
    def reserve(self, num_bytes: int) -> Iterator[None]:
        """Hold a part of the budget within the context."""
        share = min(num_bytes, self.total_bytes)
        with self._changed:
            while self.used_bytes + share > self.total_bytes:
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self.used_bytes += share
        try:
            yield
        finally:
            with self._changed:
                self.used_bytes -= share
                if self._waiting:
                    self._changed.notify_all()
