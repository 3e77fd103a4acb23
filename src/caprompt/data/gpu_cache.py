"""Decoded images of a task: on the GPU if they fit, else in RAM or in a memory-mapped file.

    cache = GPUImageCache((image_cache.get(image) for image in samples.images), device)
    pixels = cache.take(np.array([3, 0, 7]))     # (3, H, W, 3) on the device, smaller images padded

Nothing is decoded twice, and nothing outlives the cache: the temporary file is unlinked and
disappears with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caprompt.data.images import Pixels
from caprompt.utils.devices import to_device

__all__ = ["GPUImageCache", "split_by_padded_bytes", "stack_padded"]

MAX_HOST_BYTES = 2 * 1024**3  # bytes of pixels in RAM; beyond that they go to a file
MAX_GPU_SHARE = 0.4  # share of the GPU's free memory that images may take


class GPUImageCache:
    """Images of any sizes in one flat uint8 buffer, from which batches are gathered."""

    def __init__(self, images: Iterable[Pixels], device: torch.device, max_host_bytes: int = MAX_HOST_BYTES) -> None:
        self.device = device
        shapes: list[tuple[int, int]] = []
        self.host = _concatenate(_record_shapes(images, shapes), max_host_bytes)
        self.shapes = np.array(shapes, dtype=np.int64).reshape(-1, 2)  # (N, 2): heights and widths
        self.starts = np.concatenate([[0], np.cumsum(3 * self.shapes.prod(axis=1))])
        self.resident: Tensor | None = None
        if device.type == "cuda" and self.host.nbytes < MAX_GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
            self.resident = torch.from_numpy(self.host).to(device)

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
    height, width = (max(pixels.shape[axis] for pixels in images) for axis in (0, 1))
    batch = np.zeros((len(images), height, width, 3), np.uint8)
    for row, pixels in zip(batch, images, strict=True):
        row[: pixels.shape[0], : pixels.shape[1]] = pixels
    return to_device(torch.from_numpy(batch), device)


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
