"""Decoded images of a task: on the GPU if they fit, else in RAM or in a memory-mapped file.

    cache = GPUImageCache((image_cache.get(image) for image in samples.images), device)
    pixels = cache.take(np.array([3, 0, 7]))     # (3, H, W, 3) on the device, smaller images padded

Nothing is decoded twice, and nothing outlives the cache: the temporary file is unlinked and
disappears with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.data.images import Pixels
from caprompt.utils.devices import allocate_upload, to_device

__all__ = ["RENDER_BYTES", "GPUImageCache", "join_padded", "split_by_padded_bytes", "stack_on_host", "stack_padded"]

MAX_HOST_BYTES = 2 * 1024**3  # bytes of pixels in RAM; beyond that they go to a file
MAX_GPU_SHARE = 0.4  # share of the GPU's free memory that images may take
RENDER_BYTES = 2 * 1024**3  # of pixels rendered at a time, padding included
UPLOAD_BYTES = 8 * 1024**2  # of pixels that are uploaded at a time; PyTorch rounds pinned memory up to a power of two
UPLOAD_THREADS = 4  # that copy pixels to where they are uploaded from


class GPUImageCache:
    """Images of any sizes in one flat uint8 buffer, from which batches are gathered."""

    def __init__(self, images: Iterable[Pixels], device: torch.device, max_host_bytes: int = MAX_HOST_BYTES) -> None:
        self.device = device
        shapes: list[tuple[int, int]] = []
        remaining = _record_shapes(images, shapes)
        self.resident: Tensor | None = None
        if device.type == "cuda":
            max_bytes = int(MAX_GPU_SHARE * torch.cuda.mem_get_info(device)[0])
            self.resident, remaining = upload_concatenated(remaining, device, max_bytes)
        self.host = _concatenate(remaining, max_host_bytes)  # empty if all images are on the GPU
        self.shapes = np.array(shapes, dtype=np.int64).reshape(-1, 2)  # (N, 2): heights and widths
        self.starts = np.concatenate([[0], np.cumsum(3 * self.shapes.prod(axis=1))])
        self.is_uniform = len(shapes) > 0 and bool((self.shapes == self.shapes[0]).all())

    def __len__(self) -> int:
        return len(self.shapes)

    def shape(self, index: int) -> tuple[int, int]:
        """Return height and width of an image."""
        height, width = self.shapes[index].tolist()
        return height, width

    def take(self, indices: NDArray[np.int64]) -> Tensor:
        """Return images on the device, (B, H, W, 3) uint8.

        They are padded at the right and bottom to the largest of them.
        """
        if self.resident is None:
            return stack_padded([self.pixels(int(index)) for index in indices], self.device)
        if self.is_uniform:
            stacked = self.resident.view(len(self), *self.shape(0), 3)
            return stacked[to_device(torch.from_numpy(indices), self.device)]
        shapes = self.shapes[indices]
        table = np.concatenate([self.starts[indices, None], shapes], axis=1)  # (B, 3)
        start, height, width = to_device(torch.from_numpy(table), self.device)[:, :, None, None].unbind(1)
        rows = torch.arange(shapes[:, 0].max(), device=self.device)[:, None]
        columns = torch.arange(shapes[:, 1].max(), device=self.device)
        # The padding repeats the last row and column, so that every address lies within the image.
        first = start + 3 * (rows.minimum(height - 1) * width + columns.minimum(width - 1))  # (B, H, W)
        return self.resident[first[..., None] + torch.arange(3, device=self.device)]

    def pixels(self, index: int) -> Pixels:
        """Return one image on the host, (H, W, 3)."""
        flat = self.host[self.starts[index] : self.starts[index + 1]]
        return flat.reshape(*self.shape(index), 3)


def stack_padded(images: Sequence[Pixels], device: torch.device) -> Tensor:
    """Stack images of any sizes into one batch on a device, (B, H, W, 3) uint8.

    They are zero-padded at the right and bottom.
    """
    return to_device(stack_on_host(images, device), device)


def stack_on_host(images: Sequence[Pixels], device: torch.device) -> Tensor:
    """Stack images like `stack_padded`, but into host memory that a copy to `device` can be started from."""
    shapes = {pixels.shape[:2] for pixels in images}
    height, width = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    stacked = allocate_upload((len(images), height, width, 3), device)
    if len(shapes) > 1:
        stacked.zero_()
    for row, pixels in zip(stacked.numpy(), images, strict=True):
        row[: pixels.shape[0], : pixels.shape[1]] = pixels  # without the GIL
    return stacked


def join_padded(stacks: Sequence[Tensor]) -> Tensor:
    """Join stacks of images (n, H, W, 3) on one device to one, zero-padded to the largest of them.

    >>> join_padded([torch.ones(1, 2, 1, 3), torch.ones(2, 1, 2, 3)])[:, :, :, 0].tolist()
    [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]
    """
    if len({stack.shape[1:] for stack in stacks}) == 1:
        return stacks[0] if len(stacks) == 1 else torch.cat(list(stacks))
    height, width = (max(stack.shape[axis] for stack in stacks) for axis in (1, 2))
    joined = stacks[0].new_zeros(sum(map(len, stacks)), height, width, 3)
    for part, stack in zip(joined.split([len(stack) for stack in stacks]), stacks, strict=True):
        part[:, : stack.shape[1], : stack.shape[2]] = stack
    return joined


def split_by_padded_bytes(shapes: Sequence[Sequence[int]], max_bytes: int) -> list[slice]:
    """Split images of shapes (H, W, ...) into runs that take up to `max_bytes` each when padded to the largest of the run.

    >>> split_by_padded_bytes([(10, 10), (10, 10), (1000, 1), (10, 10)], max_bytes=3 * 250)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    runs: list[slice] = []
    start = height = width = 0
    for index, shape in enumerate(shapes):
        height, width = max(height, shape[0]), max(width, shape[1])
        if index > start and 3 * height * width * (index + 1 - start) > max_bytes:
            runs.append(slice(start, index))
            start, (height, width) = index, shape[:2]
    return [*runs, slice(start, len(shapes))]


def upload_concatenated(
    images: Iterator[Pixels], device: torch.device, max_bytes: int, part_bytes: int = UPLOAD_BYTES
) -> tuple[Tensor | None, Iterator[Pixels]]:
    """Concatenate all bytes of images on a device, uploading some while others are decoded.

    Return them and no images, or if they take `max_bytes` or more, None and the images again, as flat arrays.
    """
    parts: list[Future[Tensor]] = []
    waiting: list[Pixels] = []
    size = waiting_bytes = 0
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None  # every thread has its own, and its own GPU
    with ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="caprompt-upload") as pool:
        for pixels in images:
            if waiting and waiting_bytes + pixels.nbytes > part_bytes:
                parts.append(pool.submit(_upload, waiting, waiting_bytes, device, stream))
                waiting, waiting_bytes = [], 0
            waiting.append(pixels.reshape(-1))
            waiting_bytes += pixels.nbytes
            size += pixels.nbytes
            if size >= max_bytes:
                return None, chain((part.result().cpu().numpy() for part in parts), waiting, images)
        parts += [pool.submit(_upload, waiting, waiting_bytes, device, stream)] if waiting else []
    uploaded = [part.result() for part in parts]
    return (torch.cat(uploaded) if uploaded else torch.zeros(0, dtype=torch.uint8, device=device)), iter(())


def _upload(flat: Sequence[Pixels], num_bytes: int, device: torch.device, stream: torch.cuda.Stream | None) -> Tensor:
    """Upload the bytes of several images on a stream of the GPU."""
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        joined = allocate_upload((num_bytes,), device)
        np.concatenate(flat, out=joined.numpy())
        return to_device(joined, device)


def _record_shapes(images: Iterable[Pixels], shapes: list[tuple[int, int]]) -> Iterator[Pixels]:
    for pixels in images:
        shapes.append((pixels.shape[0], pixels.shape[1]))
        yield pixels


def _concatenate(images: Iterable[Pixels], max_host_bytes: int) -> Pixels:
    """Concatenate all bytes in RAM, or beyond `max_host_bytes` in a memory-mapped file."""
    buffered: list[Pixels] = []
    size = 0
    remaining = iter(images)
    for pixels in remaining:
        buffered.append(pixels.reshape(-1))
        size += pixels.nbytes
        if size > max_host_bytes:
            break
    else:
        return np.concatenate(buffered) if buffered else np.zeros(0, np.uint8)
    with tempfile.TemporaryFile() as file:
        for pixels in chain(buffered, remaining):
            file.write(pixels.tobytes())
        file.flush()
        return np.memmap(file, dtype=np.uint8, mode="c")  # copy-on-write: torch requires writable memory, nothing writes to it
