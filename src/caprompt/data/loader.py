"""Batches of transformed pictures as tensors, prepared ahead in threads; on a GPU by batched operations.

The same seed gives the same views of the same pictures on every path: each picture's augmentation has a generator of its own, made
from the seed and the picture's position. No seed is a seed of no numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from contextlib import closing
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.data.gpu_cache import GPUImageCache, stacked
from caprompt.data.gpu_transforms import render_batch
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import Pixels
from caprompt.data.prefetch import in_order
from caprompt.data.samples import Samples
from caprompt.data.transforms import Transform, View, render
from caprompt.utils.devices import to_device

__all__ = ["batches", "cached_batches", "streamed_batches"]

BATCHES_AHEAD = 2
PIECE = 32  # pictures that a thread decodes at a time


def batches(
    samples: Samples,
    targets: Sequence[int],
    transform: Transform,
    store: ImageCache,
    batch_size: int,
    *,
    seed: Sequence[int] | None,
    shuffle: bool,
    workers: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (B, 3, S, S) as float32 and targets (B,) as int64, each picture once; the last batch may be short.

    Rendered by Pillow on the CPU; the same bits whatever the number of `workers`.
    """
    order = visiting_order(samples, targets, seed, shuffle)

    def prepare(position: int) -> NDArray[np.float32]:
        pixels = store.get(samples.pictures[position])
        return render(pixels, view_of(transform, pixels.shape, seed, position), transform)

    with closing(in_order(prepare, order.tolist(), workers, ahead=BATCHES_AHEAD * batch_size)) as images:
        for part in parts(order, batch_size):
            yield torch.from_numpy(np.stack(list(islice(images, batch_size)))), targets_of(targets, part)


def streamed_batches(
    samples: Samples,
    targets: Sequence[int],
    transform: Transform,
    store: ImageCache,
    batch_size: int,
    *,
    device: torch.device,
    workers: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same in the order of the samples and rendered on `device`; for pictures that are looked at once."""

    def prepare(part: NDArray[np.int64]) -> tuple[list[Pixels], list[View]]:
        pixels = [store.get(samples.pictures[position]) for position in part]
        return pixels, [view_of(transform, each.shape, None, int(position)) for each, position in zip(pixels, part, strict=True)]

    chunks = list(parts(visiting_order(samples, targets, None, shuffle=False), batch_size))
    pieces = [list(parts(chunk, PIECE)) for chunk in chunks]  # of a batch, so that several threads decode it
    ahead = BATCHES_AHEAD * -(-batch_size // PIECE)
    with closing(in_order(prepare, chain.from_iterable(pieces), workers, ahead)) as prepared:
        for chunk, own in zip(chunks, pieces, strict=True):
            pixels, views = (list(chain.from_iterable(found)) for found in zip(*islice(prepared, len(own)), strict=True))
            yield render_batch(stacked(pixels, device), views, transform), to_device(targets_of(targets, chunk), device)


def cached_batches(
    bank: GPUImageCache, targets: Sequence[int], transform: Transform, batch_size: int, *, seed: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same, shuffled by `seed` and rendered where the bank's pictures go; views are decided ahead in a thread."""
    order = visiting_order(bank, targets, seed, shuffle=True)

    def prepare(part: NDArray[np.int64]) -> list[View]:
        return [view_of(transform, bank.shape(int(position)), seed, int(position)) for position in part]

    chunks = list(parts(order, batch_size))
    with closing(in_order(prepare, chunks, workers=1, ahead=2 * BATCHES_AHEAD)) as views:
        for part, seen in zip(chunks, views, strict=True):
            yield render_batch(bank.take(part), seen, transform), to_device(targets_of(targets, part), bank.device)


def visiting_order(pictures: Sized, targets: Sequence[int], seed: Sequence[int] | None, shuffle: bool) -> NDArray[np.int64]:
    """The positions of all pictures in the order of the visit."""
    if len(targets) != len(pictures):
        raise ValueError(f"{len(pictures)} samples but {len(targets)} targets")
    if shuffle and seed is None:
        raise ValueError("shuffling needs a seed")
    order = np.arange(len(pictures))
    if shuffle:
        np.random.default_rng(seed).shuffle(order)
    return order


def parts(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    """The order in pieces of a batch each."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def view_of(transform: Transform, shape: Sequence[int], seed: Sequence[int] | None, position: int) -> View:
    """What to see of the picture at this position, (H, W, ...), for this seed."""
    # 1 + position, since numpy takes [seed] and [seed, 0] for the same seed
    return transform.view(shape[1], shape[0], np.random.default_rng([*(seed or ()), 1 + position]))


def targets_of(targets: Sequence[int], part: NDArray[np.int64]) -> Tensor:
    """The targets of a batch: (B,)."""
    return torch.tensor([targets[position] for position in part], dtype=torch.int64)
