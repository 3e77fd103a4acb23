"""Ordered prefetching in threads."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from caprompt.utils.cores import count_cores

__all__ = ["PREFETCHED_BATCHES", "count_decode_threads", "limit_ahead", "prefetch_map"]

T = TypeVar("T")
R = TypeVar("R")

PREFETCHED_BATCHES = 2
PREFETCHED_BYTES = 512 * 1024**2  # of images that are prepared ahead
SWITCH_SECONDS = 2e-4  # after which a thread that runs Python lets others do so
MAX_DECODE_THREADS = 12  # more are slower, since all of them and the one that feeds a GPU take turns at running Python


def count_decode_threads() -> int:
    """Return how many threads decode images: one for each core that this process may use, up to a limit."""
    return min(MAX_DECODE_THREADS, count_cores())


def prefetch_map(function: Callable[[T], R], items: Iterable[T], workers: int, ahead: int) -> Generator[R, None, None]:
    """Yield `map(function, items)` in order, computed ahead in threads.

    `workers` threads compute up to `ahead` items early. With 0 workers everything is computed in
    the calling thread. Closing the iterator, or an error in it, cancels the work that has not
    started and waits for the threads to end.

    >>> list(prefetch_map(abs, [-3, 2, -1], workers=2, ahead=2))
    [3, 2, 1]
    """
    if workers == 0:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="caprompt-data")
    pending: deque[Future[R]] = deque()
    with _frequent_switching:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _FrequentSwitching:
    """A context, entered by any number of threads, in which threads that wait for their turn at running Python get it soon.

    One that has decoded an image, and the one that feeds a GPU, need it for some microseconds, but by default they may have to
    wait for 5 ms, which on a machine whose cores are busy may halve the number of files that are read in a second.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.usual = 0.0

    def __enter__(self) -> None:
        with self.lock:
            if not self.users:
                self.usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self.usual, SWITCH_SECONDS))
            self.users += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.users -= 1
            if not self.users:
                sys.setswitchinterval(self.usual)


_frequent_switching = _FrequentSwitching()


def limit_ahead(wanted: int, item_bytes: int, workers: int) -> int:
    """Return how many items to prepare ahead: as many as fit in memory, but at least one for each worker.

    >>> limit_ahead(128, 600_000, workers=2), limit_ahead(16, 150_000_000, workers=2), limit_ahead(16, 10**9, workers=2)
    (128, 3, 2)
    """
    return max(workers, min(wanted, PREFETCHED_BYTES // item_bytes))
