"""Iterators over batches of transformed images.

`iter_batches` transforms with Pillow on the CPU, ahead in threads. `iter_cached_batches`, for training, and
`iter_plain_batches`, without augmentation, transform whole batches on the device that the images are
on. `streaming` has those that decode images ahead. The same seed gives the same views of the same
images in all of them: each image's augmentation has a generator of its own, seeded by the seed and the
image's index. `seed=None` is equivalent to an empty sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from contextlib import closing
from functools import lru_cache
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.data.gpu_cache import RENDER_BYTES, GPUImageCache, split_by_padded_bytes
from caprompt.data.gpu_transforms import render_batch
from caprompt.data.image_cache import ImageCache
from caprompt.data.prefetch import PREFETCHED_BATCHES, limit_ahead, prefetch_map
from caprompt.data.samples import Samples
from caprompt.data.transforms import EvalTransform, Transform, View, render
from caprompt.utils.communication import ALONE, Communicator, choose_share
from caprompt.utils.devices import to_device
from caprompt.utils.side_stream import compute_aside

__all__ = ["iter_batches", "iter_cached_batches", "iter_plain_batches"]

RENDER_CHUNK = 128  # images rendered at a time on the device, which waits for the first of them at the start of an epoch


def iter_batches(
    samples: Samples,
    targets: Sequence[int],
    transform: Transform,
    cache: ImageCache,
    batch_size: int,
    *,
    seed: Sequence[int] | None,
    shuffle: bool,
    workers: int = 2,
    communicator: Communicator = ALONE,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images (B, 3, S, S) as float32 and targets (B,) as int64, each image once.

    The last batch may be smaller. Images are transformed by Pillow on the CPU. The number of
    `workers` does not change any bit of the result. Of several processes each gets its share of
    every batch; an image's view does not depend on their number.
    """
    batches = _split_shares(_make_order(samples, targets, seed, shuffle), batch_size, communicator)

    def prepare(index: int) -> NDArray[np.float32]:
        pixels = cache.get(samples.images[index])
        return render(pixels, _make_view(transform, pixels.shape, seed, index), transform)

    workers = workers if len(samples) > 1 else 0  # starting threads takes longer than preparing one image
    ahead = limit_ahead(PREFETCHED_BATCHES * batch_size, 4 * 3 * transform.size**2, workers)
    with closing(prefetch_map(prepare, chain.from_iterable(each.tolist() for each in batches), workers, ahead)) as images:
        for indices in batches:
            yield torch.from_numpy(np.stack(list(islice(images, len(indices))))), _select_targets(targets, indices)


def iter_cached_batches(
    cache: GPUImageCache,
    targets: Sequence[int],
    transform: Transform,
    batch_size: int,
    *,
    seed: Sequence[int],
    communicator: Communicator = ALONE,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same, shuffled by `seed` and transformed on the cache's device, some batches ahead of those that are in use."""
    batches = _split_shares(_make_order(cache, targets, seed, shuffle=True), batch_size, communicator)
    # Rendering takes about fifty small kernels however many images there are, so several batches share them.
    together = max(1, RENDER_CHUNK // len(batches[0])) if batches else 1
    parts = [batches[start : start + together] for start in range(0, len(batches), together)]

    def render_parts() -> Iterator[tuple[Tensor, Tensor]]:
        for indices in map(np.concatenate, parts):
            # Not in a thread: this is Python alone, for whose turn the thread that launches kernels would wait again and again.
            views = [_make_view(transform, cache.shape(int(index)), seed, int(index)) for index in indices]
            yield _render_cached(cache, indices, views, transform), to_device(_select_targets(targets, indices), cache.device)

    for part, (images, labels) in zip(parts, compute_aside(render_parts(), cache.device, ahead=1), strict=True):
        sizes = [len(batch) for batch in part]
        yield from zip(images.split(sizes), labels.split(sizes), strict=True)


def iter_plain_batches(
    cache: GPUImageCache, positions: Sequence[int], targets: Sequence[int], transform: EvalTransform, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images at some positions of the cache in their order, without augmentation, and the targets of these."""
    get_view = lru_cache(transform.make_view)
    for start in range(0, len(positions), batch_size):
        batch = slice(start, start + batch_size)
        indices = np.asarray(positions[batch], dtype=np.int64)
        views = [get_view(width, height) for height, width in map(cache.shape, indices.tolist())]
        own_targets = torch.tensor(targets[batch], dtype=torch.int64)
        yield _render_cached(cache, indices, views, transform), to_device(own_targets, cache.device)


def _render_cached(cache: GPUImageCache, indices: NDArray[np.int64], views: Sequence[View], transform: Transform) -> Tensor:
    """Render a view of each of the cached images at these indices, (B, 3, S, S), as many at a time as memory allows."""
    # Images of unlike sizes are gathered by the address of each byte, which takes 8 bytes.
    max_bytes = RENDER_BYTES if cache.is_uniform else RENDER_BYTES // 12
    groups = split_by_padded_bytes([cache.shape(int(index)) for index in indices], max_bytes)
    return torch.cat([render_batch(cache.take(indices[group]), views[group], transform) for group in groups])


def _make_order(images: Sized, targets: Sequence[int], seed: Sequence[int] | None, shuffle: bool) -> NDArray[np.int64]:
    """Return the indices of all images in the order in which they are visited."""
    if len(targets) != len(images):
        raise ValueError(f"{len(images)} samples but {len(targets)} targets")
    if shuffle and seed is None:
        raise ValueError("shuffling needs a seed")
    order = np.arange(len(images))
    if shuffle:
        np.random.default_rng(seed).shuffle(order)
    return order


def _split_batches(order: NDArray[np.int64], batch_size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _split_shares(order: NDArray[np.int64], batch_size: int, communicator: Communicator) -> list[NDArray[np.int64]]:
    """Return the share of every batch that this process gets."""
    return [batch[choose_share(len(batch), communicator)] for batch in _split_batches(order, batch_size)]


def _make_view(transform: Transform, shape: Sequence[int], seed: Sequence[int] | None, index: int) -> View:
    """Return the view of the image at `index`, of shape (H, W, ...), for this seed."""
    # 1 + index, since numpy treats [seed] and [seed, 0] as the same seed
    return transform.make_view(shape[1], shape[0], np.random.default_rng([*(seed or ()), 1 + index]))


def _select_targets(targets: Sequence[int], indices: NDArray[np.int64]) -> Tensor:
    return torch.tensor([targets[index] for index in indices], dtype=torch.int64)
