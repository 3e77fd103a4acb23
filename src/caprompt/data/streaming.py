"""Images that are read once: decoded ahead in threads, and transformed on a device in whole batches.

    for images in iter_streamed_images(paths, transform, cache, 256, device=device):
        ...  # (256, 3, S, S) on the device, while threads decode the next ones

A thread prepares a chunk of a batch, stacked where it is uploaded from. JPEG files of one size are
decoded straight to there, and nothing runs Python for a single image but the decoding itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.gpu_cache import RENDER_BYTES, join_padded, split_by_padded_bytes, stack_on_host, stack_padded
from caprompt.data.gpu_transforms import MAX_SHAPE_RATIO, crop_to_view, render_batch
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import ImageInput, Pixels, PlainJPEG, decode_into, get_size, is_plain_pillow
from caprompt.data.prefetch import PREFETCHED_BATCHES, count_decode_threads, limit_ahead, prefetch_map
from caprompt.data.samples import Samples
from caprompt.data.transforms import EvalTransform, Transform, View
from caprompt.errors import DataError
from caprompt.utils.devices import allocate_upload, to_device
from caprompt.utils.side_stream import compute_aside

__all__ = ["iter_streamed_batches", "iter_streamed_images", "split_into_batches"]

DECODE_CHUNK = 32  # most images that a thread prepares at a time
NUM_MEASURED = 8  # images whose size is read to estimate the memory that decoded ones take
STACKED_BYTES = 64 * 1024**2  # of images that a thread stacks


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
    """Yield images (B, 3, S, S) and targets (B,) in the order of the samples, transformed on `device`. Several threads decode.

    With `short_ends`, the first and the last batch of many are shorter, and those of files are halves (`split_into_batches`).
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
        files = [_read_small_jpeg(image, cache) for image in part] if cache.budget_bytes <= 0 else []
        stacked = _decode_stacked(files, device)
        stacked = _copy_stacked(part, cache.shrink_to, device) if stacked is None else stacked
        if stacked is not None:
            rows = stacked[..., :3].numpy()
            return _Chunk(list(rows), [get_view(rows.shape[1:])] * len(part), stacked)
        decoded = decode_each(part, files)
        if len({file.shape for file in files if file is not None}) > 1:
            pixels, views = zip(*decoded, strict=True)
            return _pad_chunk(list(pixels), list(views), device)
        return _stack_chunk(decoded, len(part), device)

    if len(images) == 1:  # there is nothing to prepare ahead, and every microsecond counts
        yield _render_chunks([prepare(slice(0, 1))], transform, device)
        return
    workers = count_decode_threads() if workers is None else workers
    has_files = any(isinstance(image, (Path, EncodedImage)) for image in images)
    batches = split_into_batches(len(images), batch_size, short_ends, has_files)
    chunks = [_split_range(batch, _choose_chunk_size(batch, workers if has_files else 1)) for batch in batches]
    num_chunks = sum(map(len, chunks))
    is_slow = num_chunks > 1 and any(_takes_time(image, cache.shrink_to) for image in images)
    workers = min(workers, num_chunks) if is_slow else 0
    image_bytes = _estimate_decoded_bytes(images, cache.shrink_to) if workers else 1
    largest = max((chunk.stop - chunk.start for own_chunks in chunks for chunk in own_chunks), default=1)
    ahead = limit_ahead(-(-PREFETCHED_BATCHES * batch_size // largest), largest * image_bytes, workers)
    with closing(prefetch_map(prepare, chain.from_iterable(chunks), workers, ahead)) as prepared:
        rendered = (_render_chunks(islice(prepared, len(own_chunks)), transform, device) for own_chunks in chunks)
        yield from rendered if len(chunks) == 1 else (batch for (batch,) in compute_aside(((each,) for each in rendered), device))


def split_into_batches(count: int, size: int, short_ends: bool = False, has_files: bool = False) -> list[slice]:
    """Split a number of images into batches of `size`; with `short_ends` the first two and the last of many are shorter.

    So a device starts early to work on the first, and has little left to do when the last image is there. Decoding files takes
    longer than predicting them, so that what counts there is how much the device has left to do: all batches are halves.

    >>> [batch.stop - batch.start for batch in split_into_batches(1000, 256)]
    [256, 256, 256, 232]
    >>> [batch.stop - batch.start for batch in split_into_batches(1000, 256, short_ends=True)]
    [64, 128, 256, 256, 232, 64]
    >>> [batch.stop - batch.start for batch in split_into_batches(512, 256, short_ends=True, has_files=True)]
    [64, 128, 128, 128, 64]
    """
    short = size // 4
    if not short_ends or not short or count <= (size if has_files else 2 * size):
        return _split_range(slice(0, count), size)
    starts = [slice(0, short)] if has_files else [slice(0, short), slice(short, 3 * short)]
    middle, last = slice(starts[-1].stop, count - short), slice(count - short, count)
    return [*starts, *_split_range(middle, size // 2 if has_files else size), last]


def _split_range(whole: slice, size: int) -> list[slice]:
    """Split a range into ranges of `size`, the last of which may be shorter.

    >>> _split_range(slice(4, 9), 2)
    [slice(4, 6, None), slice(6, 8, None), slice(8, 9, None)]
    """
    return [slice(start, min(start + size, whole.stop)) for start in range(whole.start, whole.stop, size)]


def _choose_chunk_size(batch: slice, workers: int) -> int:
    """Return how many images of a batch a thread prepares at a time: so few that all threads work on it, in one turn each."""
    return min(DECODE_CHUNK, -(-int(batch.stop - batch.start) // max(1, workers)))


def _takes_time(image: ImageInput, shrink_to: int | None) -> bool:
    """Return whether an image is decoded or shrunk. One that is only copied is copied while the device works on others.

    Threads would make that slower: all of them, and the one that feeds the device, would wait for their turn to run Python.
    """
    return isinstance(image, (Path, EncodedImage)) or (shrink_to is not None and min(get_size(image)) > shrink_to)


def _estimate_decoded_bytes(images: Sequence[ImageInput], shrink_to: int | None) -> int:
    """Return how many bytes the largest of some images takes when it is decoded."""
    largest = 1
    for image in images[:: -(-len(images) // NUM_MEASURED)]:
        try:
            width, height = get_size(image)
        except DataError:  # which decoding will report
            continue
        scale = 1.0 if shrink_to is None else min(1.0, shrink_to / min(width, height))
        largest = max(largest, round(3 * width * height * scale**2))
    return largest


@dataclass(frozen=True)
class _Chunk:
    """Decoded images and the view of each; `stacked` has the same images in one tensor on the host, unless that is too large."""

    pixels: list[Pixels]
    views: list[View]
    stacked: Tensor | None  # (n, H, W, 3), or with a fourth channel that means nothing


def _read_small_jpeg(image: ImageInput, cache: ImageCache) -> PlainJPEG | None:
    """Read a JPEG file that is decoded as it is; None for others, also for large ones, of which few should be in memory."""
    file = cache.read_jpeg(image)
    return None if file is None or file.is_shrunk else file


def _decode_stacked(files: Sequence[PlainJPEG | None], device: torch.device) -> Tensor | None:
    """Decode JPEG files of the same size straight to where they are uploaded from, (n, H, W, 3); None if that is not possible."""
    plain = [file for file in files if file is not None]
    if len(plain) < len(files) or len({file.shape for file in plain}) != 1:
        return None
    stacked = _allocate_stack((len(plain), *plain[0].shape), device)
    return stacked if stacked is not None and decode_into(plain, stacked.numpy()) else None


def _copy_stacked(images: Sequence[ImageInput], shrink_to: int | None, device: torch.device) -> Tensor | None:
    """Copy Pillow images of the same size to where they are uploaded from, (n, H, W, 4); None if there are others.

    Pillow stores a pixel of three channels in four bytes, and copies these twice as fast as three of them.
    """
    if not all(is_plain_pillow(image, shrink_to) for image in images):
        return None
    sizes = {image.size for image in images if isinstance(image, Image.Image)}
    width, height = sizes.pop()
    stacked = None if sizes else _allocate_stack((len(images), height, width, 4), device)
    if stacked is None:
        return None
    try:
        for row, image in zip(stacked.numpy().reshape(len(images), -1), images, strict=True):
            assert isinstance(image, Image.Image)
            row[:] = np.frombuffer(image.tobytes("raw", "RGBX"), dtype=np.uint8)
    except Exception:  # which `decode` turns into a sentence
        return None
    return stacked


def _allocate_stack(shape: tuple[int, int, int, int], device: torch.device) -> Tensor | None:
    """Allocate memory to stack images (n, H, W, channels) in; None if they are so long, or so many, that they are treated apart."""
    count, height, width, channels = shape
    too_many = channels * height * width * count > min(STACKED_BYTES, RENDER_BYTES)
    return None if too_many or max(height, width) > MAX_SHAPE_RATIO * min(height, width) else allocate_upload(shape, device)


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


def _render_chunks(prepared: Iterable[_Chunk], transform: Transform, device: torch.device) -> Tensor:
    """Render the images of a batch together, padded to the largest, or in groups if that took too much memory."""
    chunks: list[_Chunk] = []
    stacks: list[Tensor] = []
    for chunk in prepared:
        chunks.append(chunk)
        if chunk.stacked is not None:
            stacks.append(to_device(chunk.stacked, device)[..., :3])  # while the next chunk is prepared
    if len(stacks) == len(chunks) == 1:  # which is not stacked if it is too large
        return render_batch(stacks[0], chunks[0].views, transform)
    views = [view for chunk in chunks for view in chunk.views]
    height, width = (max((stack.shape[axis] for stack in stacks), default=0) for axis in (1, 2))
    if len(stacks) == len(chunks) and 3 * height * width * len(views) <= RENDER_BYTES:
        return render_batch(join_padded(stacks), views, transform)
    pixels = [each for chunk in chunks for each in chunk.pixels]
    groups = split_by_padded_bytes([each.shape for each in pixels], RENDER_BYTES)
    return torch.cat([render_batch(stack_padded(pixels[group], device), views[group], transform) for group in groups])
