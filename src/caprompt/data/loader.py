"""Iterators over batches of transformed images, prefetched in threads.

`iter_batches` transforms with Pillow on the CPU. The others transform whole batches on a device: of
images that are there already, `iter_cached_batches` for training and `iter_plain_batches` without
augmentation; of images that are decoded ahead, `iter_streamed_batches` and `iter_streamed_images`.
The same seed gives the same views of the same images in all of them: each image's augmentation has a
generator of its own, seeded by the seed and the image's index. `seed=None` is equivalent to an empty
sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.gpu_cache import GPUImageCache, join_padded, split_by_padded_bytes, stack_on_host, stack_padded
from caprompt.data.gpu_transforms import MAX_SHAPE_RATIO, crop_to_view, render_batch
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import ImageInput, Pixels, PlainJPEG, read_plain_jpeg, read_size
from caprompt.data.prefetch import count_decode_threads, prefetch_map
from caprompt.data.samples import Samples
from caprompt.data.transforms import EvalTransform, Transform, View, render
from caprompt.errors import DataError
from caprompt.utils.communication import ALONE, Communicator, choose_share
from caprompt.utils.devices import allocate_upload, to_device
from caprompt.utils.side_stream import compute_aside

__all__ = [
    "iter_batches",
    "iter_cached_batches",
    "iter_plain_batches",
    "iter_streamed_batches",
    "iter_streamed_images",
    "split_into_batches",
]

PREFETCHED_BATCHES = 2
PREFETCHED_BYTES = 512 * 1024**2  # of images that are prepared ahead
RENDER_CHUNK = 128  # images rendered at a time on the device, which waits for the first of them at the start of an epoch
RENDER_BYTES = 2 * 1024**3  # of pixels rendered at a time, padding included
DECODE_CHUNK = 32  # most images that a thread prepares at a time
NUM_MEASURED = 8  # images whose size is read to estimate the memory that decoded ones take
STACKED_BYTES = 64 * 1024**2  # of images that a thread stacks


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
    ahead = _limit_ahead(PREFETCHED_BATCHES * batch_size, 4 * 3 * transform.size**2, workers)
    with closing(prefetch_map(prepare, chain.from_iterable(each.tolist() for each in batches), workers, ahead)) as images:
        for indices in batches:
            yield torch.from_numpy(np.stack(list(islice(images, len(indices))))), _select_targets(targets, indices)


def iter_streamed_batches(
    samples: Samples,
    targets: Sequence[int],
    transform: EvalTransform,
    cache: ImageCache,
    batch_size: int,
    *,
    device: torch.device,
    workers: int | None = None,
    short_ends: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same in the order of the samples, transformed on `device`; for a single pass. Every core decodes.

    With `short_ends`, the first and the last batch of many are shorter, so that a device starts early to work on the first, and
    has little left to do when the last image is decoded.
    """
    if len(targets) != len(samples):
        raise ValueError(f"{len(samples)} samples but {len(targets)} targets")
    labels = to_device(torch.tensor(targets, dtype=torch.int64), device)
    batches = iter_streamed_images(
        samples.images, transform, cache, batch_size, device=device, workers=workers, short_ends=short_ends
    )
    done = 0
    for images in batches:
        yield images, labels[done : done + len(images)]
        done += len(images)


def iter_streamed_images(
    images: Sequence[ImageInput],
    transform: EvalTransform,
    cache: ImageCache,
    batch_size: int,
    *,
    device: torch.device,
    workers: int | None = None,
    short_ends: bool = False,
) -> Iterator[Tensor]:
    """Yield the images of `iter_streamed_batches` alone."""
    workers = count_decode_threads() if workers is None else workers
    known_views: dict[tuple[int, ...], View] = {}  # by shape: most images have the same

    def get_view(shape: tuple[int, ...]) -> View:
        if shape not in known_views:
            known_views[shape] = transform.make_view(shape[1], shape[0])
        return known_views[shape]

    def decode_each(part: Sequence[ImageInput], files: Sequence[PlainJPEG | None]) -> Iterator[tuple[Pixels, View]]:
        for position, image in enumerate(part):
            file = files[position] if files else None
            own = None if file is None else file.decode()
            own = cache.get(image) if own is None else own
            yield crop_to_view(own, get_view(own.shape), transform)

    def prepare(chunk: slice) -> _Chunk:
        part = images[chunk]
        files = [read_plain_jpeg(image, cache.shrink_to) for image in part] if cache.budget_bytes <= 0 else []
        stacked = _decode_stacked(files, device)
        if stacked is not None:
            return _Chunk(list(stacked.numpy()), [get_view(tuple(stacked.shape[1:]))] * len(part), stacked)
        return _stack_chunk(decode_each(part, files), len(part), device)

    batches = split_into_batches(len(images), batch_size, short_ends)
    has_files = any(isinstance(image, (Path, EncodedImage)) for image in images)
    chunks = [_split_range(batch, _choose_chunk_size(batch, workers if has_files else 1)) for batch in batches]
    num_chunks = sum(map(len, chunks))
    is_slow = num_chunks > 1 and any(_takes_time(image, cache.shrink_to) for image in images)
    workers = min(workers, num_chunks) if is_slow else 0
    image_bytes = _estimate_decoded_bytes(images, cache.shrink_to) if workers else 1
    largest = max((chunk.stop - chunk.start for own_chunks in chunks for chunk in own_chunks), default=1)
    ahead = _limit_ahead(PREFETCHED_BATCHES * max(map(len, chunks), default=1), largest * image_bytes, workers)
    with closing(prefetch_map(prepare, chain.from_iterable(chunks), workers, ahead)) as prepared:
        rendered = (_render_chunks(list(islice(prepared, len(own_chunks))), transform, device) for own_chunks in chunks)
        yield from rendered if len(chunks) == 1 else (batch for (batch,) in compute_aside(((each,) for each in rendered), device))


def iter_cached_batches(
    cache: GPUImageCache,
    targets: Sequence[int],
    transform: Transform,
    batch_size: int,
    *,
    seed: Sequence[int],
    communicator: Communicator = ALONE,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same, shuffled by `seed` and transformed on the cache's device, some batches ahead of those that are in use.

    A thread computes the views ahead.
    """
    batches = _split_shares(_make_order(cache, targets, seed, shuffle=True), batch_size, communicator)

    def prepare(indices: NDArray[np.int64]) -> list[View]:
        return [_make_view(transform, cache.shape(int(index)), seed, int(index)) for index in indices]

    # Rendering takes about fifty small kernels however many images there are, so several batches share them.
    together = max(1, RENDER_CHUNK // len(batches[0])) if batches else 1
    parts = [batches[start : start + together] for start in range(0, len(batches), together)]
    chunks = [np.concatenate(part) for part in parts]
    with closing(prefetch_map(prepare, chunks, workers=1, ahead=2)) as prepared:

        def render_parts() -> Iterator[tuple[Tensor, Tensor]]:
            for indices, views in zip(chunks, prepared, strict=True):
                yield _render_cached(cache, indices, views, transform), to_device(_select_targets(targets, indices), cache.device)

        for part, (images, labels) in zip(parts, compute_aside(render_parts(), cache.device, ahead=1), strict=True):
            sizes = [len(batch) for batch in part]
            yield from zip(images.split(sizes), labels.split(sizes), strict=True)


def iter_plain_batches(
    cache: GPUImageCache, positions: Sequence[int], targets: Sequence[int], transform: EvalTransform, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the images at some positions of the cache in their order, without augmentation, and the targets of these."""
    get_view = lru_cache(transform.make_view)
    for batch in _split_range(slice(0, len(positions)), batch_size):
        indices = np.asarray(positions[batch], dtype=np.int64)
        views = [get_view(width, height) for height, width in map(cache.shape, indices.tolist())]
        own_targets = torch.tensor(targets[batch], dtype=torch.int64)
        yield _render_cached(cache, indices, views, transform), to_device(own_targets, cache.device)


def _render_cached(cache: GPUImageCache, indices: NDArray[np.int64], views: Sequence[View], transform: Transform) -> Tensor:
    """Render a view of each of the cached images at these indices, (B, 3, S, S), as many at a time as memory allows."""
    groups = split_by_padded_bytes([cache.shape(int(index)) for index in indices], RENDER_BYTES)
    return torch.cat([render_batch(cache.take(indices[group]), views[group], transform) for group in groups])


@dataclass(frozen=True)
class _Chunk:
    """Decoded images and the view of each; `stacked` has the same images in one tensor on the host, unless that is too large."""

    pixels: list[Pixels]
    views: list[View]
    stacked: Tensor | None  # (n, H, W, 3)


def _takes_time(image: ImageInput, shrink_to: int | None) -> bool:
    """Return whether an image is decoded or shrunk. One that is only copied is copied while the device works on others.

    Threads would make that slower: all of them, and the one that feeds the device, would wait for their turn to run Python.
    """
    return isinstance(image, (Path, EncodedImage)) or (shrink_to is not None and min(_get_size(image)) > shrink_to)


def _get_size(image: ImageInput) -> tuple[int, int]:
    """Return both sides of an image; of a file, its header is read."""
    if isinstance(image, (Path, EncodedImage)):
        return read_size(image)
    return image.size if isinstance(image, Image.Image) else (image.shape[0], image.shape[1])


def _estimate_decoded_bytes(images: Sequence[ImageInput], shrink_to: int | None) -> int:
    """Return how many bytes the largest of some images takes when it is decoded."""
    largest = 1
    for image in images[:: -(-len(images) // NUM_MEASURED)]:
        try:
            width, height = _get_size(image)
        except DataError:  # which decoding will report
            continue
        scale = 1.0 if shrink_to is None else min(1.0, shrink_to / min(width, height))
        largest = max(largest, round(3 * width * height * scale**2))
    return largest


def split_into_batches(count: int, size: int, short_ends: bool = False) -> list[slice]:
    """Split a number of images into batches of `size`; with `short_ends` the first two and the last of many are shorter.

    >>> [batch.stop - batch.start for batch in split_into_batches(1000, 256)]
    [256, 256, 256, 232]
    >>> [batch.stop - batch.start for batch in split_into_batches(1000, 256, short_ends=True)]
    [64, 128, 256, 256, 232, 64]
    """
    short = size // 4
    if not short_ends or not short or count <= 2 * size:
        return _split_range(slice(0, count), size)
    first, second, last = slice(0, short), slice(short, 3 * short), slice(count - short, count)
    return [first, second, *_split_range(slice(3 * short, count - short), size), last]


def _choose_chunk_size(batch: slice, workers: int) -> int:
    """Return how many images of a batch a thread prepares at a time: so few that all threads work on it."""
    return max(1, min(DECODE_CHUNK, int(batch.stop - batch.start) // max(1, workers)))


def _decode_stacked(files: Sequence[PlainJPEG | None], device: torch.device) -> Tensor | None:
    """Decode JPEG files of the same size straight to where they are uploaded from, (n, H, W, 3); None if that is not possible."""
    first = files[0] if files else None
    if first is None or any(file is None or file.shape != first.shape for file in files):
        return None
    height, width, _ = first.shape
    if max(height, width) > MAX_SHAPE_RATIO * min(height, width) or 3 * height * width * len(files) > min(
        STACKED_BYTES, RENDER_BYTES
    ):
        return None
    stacked = allocate_upload((len(files), height, width, 3), device)
    is_decoded = [file is not None and file.decode(row) is not None for file, row in zip(files, stacked.numpy(), strict=True)]
    return stacked if all(is_decoded) else None


def _stack_chunk(decoded: Iterable[tuple[Pixels, View]], count: int, device: torch.device) -> _Chunk:
    """Stack `count` images in the thread that decodes them, so that nothing is copied in the one that waits for them.

    Each is copied as soon as it is decoded, while it is in the processor's cache, as long as all have the same size.
    """
    pixels: list[Pixels] = []
    views: list[View] = []
    stacked: Tensor | None = None
    for own, view in decoded:
        if not pixels and own.nbytes * count <= min(STACKED_BYTES, RENDER_BYTES):
            stacked = allocate_upload((count, *own.shape), device)
            rows = stacked.numpy()
        if stacked is not None and own.shape == rows.shape[1:]:
            rows[len(pixels)] = own
            own = rows[len(pixels)]
        else:
            stacked = None
        pixels.append(own)
        views.append(view)
    return _Chunk(pixels, views, stacked) if stacked is not None else _pad_chunk(pixels, views, device)


def _pad_chunk(pixels: list[Pixels], views: list[View], device: torch.device) -> _Chunk:
    """Stack images of unlike sizes."""
    height, width = (max(each.shape[axis] for each in pixels) for axis in (0, 1))
    if 3 * height * width * len(pixels) > min(STACKED_BYTES, RENDER_BYTES):
        return _Chunk(pixels, views, None)
    stacked = stack_on_host(pixels, device)
    rows = [row[: each.shape[0], : each.shape[1]] for row, each in zip(stacked.numpy(), pixels, strict=True)]
    return _Chunk(rows, views, stacked)  # the decoded images themselves are freed


def _render_chunks(chunks: Sequence[_Chunk], transform: Transform, device: torch.device) -> Tensor:
    """Render the images of a batch together, padded to the largest, or in groups if that took too much memory."""
    views = [view for chunk in chunks for view in chunk.views]
    stacks = [chunk.stacked for chunk in chunks if chunk.stacked is not None]
    height, width = (max((stack.shape[axis] for stack in stacks), default=0) for axis in (1, 2))
    if len(stacks) == len(chunks) and 3 * height * width * len(views) <= RENDER_BYTES:
        return render_batch(join_padded([to_device(stack, device) for stack in stacks]), views, transform)
    pixels = [each for chunk in chunks for each in chunk.pixels]
    groups = split_by_padded_bytes([each.shape for each in pixels], RENDER_BYTES)
    return torch.cat([render_batch(stack_padded(pixels[group], device), views[group], transform) for group in groups])


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


def _limit_ahead(wanted: int, item_bytes: int, workers: int) -> int:
    """Return how many items to prepare ahead: as many as fit in memory, but at least one for each worker.

    >>> _limit_ahead(128, 600_000, workers=2), _limit_ahead(16, 150_000_000, workers=2), _limit_ahead(16, 10**9, workers=2)
    (128, 3, 2)
    """
    return max(workers, min(wanted, PREFETCHED_BYTES // item_bytes))


def _split_range(whole: slice, size: int) -> list[slice]:
    """Split a range into ranges of `size`, the last of which may be shorter.

    >>> _split_range(slice(4, 9), 2)
    [slice(4, 6, None), slice(6, 8, None), slice(8, 9, None)]
    """
    return [slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size)]


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
