"""Threads that compute independent parts of the work on a CPU, each alone.

PyTorch divides every operation among its threads, which wait for each other after each of them, thousands of times a second. That
takes time, the more so beside other busy processes, where a thread that is waited for may not be running. Threads with images of
their own wait once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = ["map_on_device", "map_single_threaded", "split_evenly", "use_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_single_threaded(function: Callable[[Item], Result], items: Sequence[Item], *, several: bool = True) -> list[Result]:
    """Apply a function to items, each on one thread; `several` at a time, as many as PyTorch would use threads.

    Gradients are computed where they are in the calling thread, which takes part in the work.
    """
    computes_gradients, waiting, results = torch.is_grad_enabled(), deque(range(len(items))), dict[int, Result]()

    def work() -> None:
        with torch.set_grad_enabled(computes_gradients):
            try:
                for position in _take(waiting):
                    results[position] = function(items[position])
            except BaseException:
                waiting.clear()  # so that the others end, too
                raise

    with use_threads(1) as threads:
        helpers = min(threads, len(items)) - 1 if several else 0
        futures = [_get_pool(threads - 1).submit(work) for _ in range(helpers)]
        work()
        for future in futures:
            if not future.cancel():  # it can be if the pool was busy with other work
                future.result()
    return [results[position] for position in range(len(items))]


def _take(waiting: deque[int]) -> Iterator[int]:
    """Yield positions that no other thread has taken, until there are none."""
    while True:
        try:
            position = waiting.popleft()
        except IndexError:
            return
        yield position


def map_on_device(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """Apply a function that computes on a device to items: on a CPU each on one thread, on a GPU one after the other."""
    return map_single_threaded(function, items) if device.type == "cpu" else [function(item) for item in items]


def split_evenly(count: int, max_parts: int, min_size: int) -> list[slice]:
    """Return slices that divide so many items into equal parts, to a difference of one, none of which is below a size.

    >>> split_evenly(11, 3, 2)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 11, None)]
    >>> split_evenly(11, 8, 4)
    [slice(0, 6, None), slice(6, 11, None)]
    >>> split_evenly(3, 8, 4)
    [slice(0, 3, None)]
    """
    parts = max(1, min(max_parts, count // min_size))
    size, longer = divmod(count, parts)
    ends = [size * number + min(number, longer) for number in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@cache
def _get_pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads. It is kept: new threads would first have to get memory for their results."""
    return ThreadPoolExecutor(threads, "caprompt-compute", initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_get_pool.cache_clear)  # a fork has no thread but the one that called it


@contextmanager
def use_threads(count: int) -> Iterator[int]:
    """Let PyTorch use so many threads in this one within the context; yield the number that it used before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)  # also the number for threads that are started later: the pool has set that to 1
