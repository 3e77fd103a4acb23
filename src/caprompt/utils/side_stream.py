"""Work that a GPU does on a stream of its own, beside the work that uses its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["compute_aside"]

Item = TypeVar("Item", bound=tuple[Tensor, ...])


def compute_aside(items: Iterator[Item], device: torch.device, ahead: int = 0) -> Iterator[Item]:
    """Yield the tensors that an iterator computes, on a GPU on another stream than that of the caller.

    So an item is computed while the caller's work on the one before goes on, which the GPU does later than it is called. With
    `ahead`, that many items are computed before they are asked for.

    >>> [item[0].item() for item in compute_aside(iter([(torch.tensor(3),), (torch.tensor(4),)]), torch.device("cpu"))]
    [3, 4]
    """
    if device.type != "cuda":
        yield from items
        return
    stream = _get_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # which may still write what the items are computed from
    started = _start_all(items, stream)
    waiting = deque(islice(started, ahead))
    while True:
        waiting.extend(islice(started, 1))
        if not waiting:
            return
        item, is_computed = waiting.popleft()
        user = torch.cuda.current_stream(device)
        user.wait_event(is_computed)
        for tensor in item:
            tensor.record_stream(user)  # so that its memory is not reused too early
        yield item


def _start_all(items: Iterator[Item], stream: torch.cuda.Stream) -> Iterator[tuple[Item, torch.cuda.Event]]:
    while True:
        with torch.cuda.stream(stream):
            item = next(items, None)
        if item is None:
            return
        yield item, stream.record_event()


@cache
def _get_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the same stream in every call, so that memory and constants that were made on it are used again."""
    return torch.cuda.Stream(device)
