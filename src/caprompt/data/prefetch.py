"""Working ahead in threads without losing the order, and without leaving threads behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_order"]

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], items: Iterable[T], workers: int, ahead: int) -> Generator[R, None, None]:
    """`map(function, items)`, computed by `workers` threads up to `ahead` items early; with 0 workers, right here.

    Closing the iterator, or an error in it, drops the work not yet begun and waits for the threads to end.

    >>> list(in_order(abs, [-3, 2, -1], workers=2, ahead=2))
    [3, 2, 1]
    """
    if workers == 0:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="caprompt-data")
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
