"""Work that a GPU does ahead of its use, on a stream of its own, beside the work that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

__all__ = ["compute_ahead"]


def compute_ahead(items: Iterator[tuple[Tensor, ...]], device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors that an iterator computes. On a GPU, the next item is computed while the current one is in use.

    >>> [item[0].item() for item in compute_ahead(iter([(torch.tensor(3),), (torch.tensor(4),)]), torch.device("cpu"))]
    [3, 4]
    """
    if device.type != "cuda":
        yield from items
        return
    stream = _get_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # which may still write what the items are computed from
    following = _start_next(items, stream)
    while following is not None:
        current, is_computed = following
        following = _start_next(items, stream)
        user = torch.cuda.current_stream(device)
        user.wait_event(is_computed)
        for tensor in current:
            tensor.record_stream(user)  # so that its memory is not reused too early
        yield current


def _start_next(
    items: Iterator[tuple[Tensor, ...]], stream: torch.cuda.Stream
) -> tuple[tuple[Tensor, ...], torch.cuda.Event] | None:
    with torch.cuda.stream(stream):
        item = next(items, None)
    return None if item is None else (item, stream.record_event())


@cache
def _get_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the same stream in every call, so that memory and constants that were made on it are used again."""
    return torch.cuda.Stream(device)
