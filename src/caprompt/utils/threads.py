"""Threads that compute independent parts of the work on a CPU.

PyTorch divides every operation among its threads, which wait for each other after each of them, thousands of times a second. That
takes time, the more so beside other busy processes, where a thread that is waited for may not be running. Threads with images of
their own wait once. More than a few of these would wait for Python's lock instead; where there are more cores, each of them lets
PyTorch divide its operations among some. `benchmarks/cpu_threads.py` compares the numbers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

__all__ = [
    "compute_in_threads",
    "count_workers",
    "is_worker",
    "map_on_device",
    "map_parts",
    "split_evenly",
    "use_threads",
]

MAX_WORKERS = 4  # with images of their own

Item = TypeVar("Item")
Result = TypeVar("Result")

_local = threading.local()  # `is_worker`: whether a thread computes a part of such work


def count_workers() -> int:
    """Return how many threads to give images of their own: a few, which use all cores if each of them uses as many others."""
    threads = torch.get_num_threads()
    return max(range(min(threads, 2), min(threads, MAX_WORKERS) + 1), key=lambda count: (threads - threads % count, count))


def is_worker() -> bool:
    """Return whether this thread computes a part of some work, so that it should not divide its part again."""
    return getattr(_local, "is_worker", False)


def map_parts(function: Callable[[Item], Result], parts: Sequence[Item]) -> list[Result]:
    """Apply a function to parts of a batch, by a few threads that share the cores among them."""
    workers = max(1, min(count_workers(), len(parts)))
    return compute_in_threads(function, parts, workers, torch.get_num_threads() // workers)


def compute_in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, threads_each: int = 1
) -> list[Result]:
    """Apply a function to items by threads, the calling one among them, each of which lets PyTorch use `threads_each`.

    Gradients are computed where they are in the calling thread.
    """
    if is_worker():
        return [function(item) for item in items]  # all threads have their work already
    computes_gradients, waiting, results = torch.is_grad_enabled(), deque(range(len(items))), dict[int, Result]()

    def work() -> None:
        _local.is_worker = True
        try:
            with torch.set_grad_enabled(computes_gradients):
                for position in _take(waiting):
                    results[position] = function(items[position])
        except BaseException:
            waiting.clear()  # so that the others end, too
            raise
        finally:
            _local.is_worker = False

    with use_threads(threads_each):
        helpers = min(workers, len(items)) - 1
        futures = [_get_pool(workers - 1, threads_each).submit(work) for _ in range(helpers)]
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
    if device.type != "cpu":
        return [function(item) for item in items]
    return compute_in_threads(function, items, torch.get_num_threads())


def split_evenly(count: int, max_parts: int) -> list[slice]:
    """Return slices that divide so many items into equal parts, to a difference of one.

    >>> split_evenly(11, 3)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 11, None)]
    >>> split_evenly(2, 3)
    [slice(0, 1, None), slice(1, 2, None)]
    """
    parts = max(1, min(max_parts, count))
    size, longer = divmod(count, parts)
    ends = [size * number + min(number, longer) for number in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


@cache
def _get_pool(workers: int, threads_each: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads. It is kept: new threads would first have to get memory for their results.

    All of them have started: what a thread sets for itself is also the number for threads that are started later, until
    `use_threads` sets that back.
    """
    started = threading.Barrier(workers + 1)

    def start() -> None:
        torch.set_num_threads(threads_each)
        started.wait()

    pool = ThreadPoolExecutor(workers, "caprompt-compute", initializer=start)
    try:
        for _ in range(workers):
            pool.submit(int)
        started.wait()
    except BaseException:
        started.abort()  # those that have started would wait for ever
        raise
    return pool


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
        torch.set_num_threads(threads)  # also for threads that are started later
