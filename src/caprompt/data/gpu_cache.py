"""A task's decoded pictures where training wants them: on the GPU if they fit there, else in memory or in a file on disk.

    bank = GPUImageCache((store.get(picture) for picture in samples.pictures), device)
    pixels = bank.take(np.array([3, 0, 7]))     # (3, H, W, 3) on the device, smaller pictures padded

Nothing is decoded twice, and nothing outlives the bank: the file on disk has no name and is gone with the process.
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

__all__ = ["GPUImageCache", "stacked"]

IN_MEMORY = 2 * 1024**3  # bytes of pictures kept in memory before a file takes over
SHARE_OF_DEVICE = 0.4  # of the GPU's free memory that pictures may take


class GPUImageCache:
    """Pictures of any sizes side by side as plain bytes, taken out in batches."""

    def __init__(self, pictures: Iterable[Pixels], device: torch.device, in_memory: int = IN_MEMORY) -> None:
        self.device = device
        shapes: list[tuple[int, int]] = []
        self.host = _side_by_side(_noting(pictures, shapes), in_memory)
        self.shapes = np.array(shapes, dtype=np.int64).reshape(-1, 2)  # (N, 2): heights and widths
        self.starts = np.concatenate([[0], np.cumsum(3 * self.shapes.prod(axis=1))])
        self.resident: Tensor | None = None
        if device.type == "cuda" and self.host.nbytes < SHARE_OF_DEVICE * torch.cuda.mem_get_info(device)[0]:
            self.resident = torch.from_numpy(self.host).to(device)

    def __len__(self) -> int:
        return len(self.shapes)

    def shape(self, position: int) -> tuple[int, int]:
        """Height and width of a picture."""
        height, width = self.shapes[position].tolist()
        return height, width

    def take(self, positions: NDArray[np.int64]) -> Tensor:
        """These pictures on the device, each padded at its right and bottom to the largest of them: (B, H, W, 3) bytes."""
        if self.resident is None:
            return stacked([self.pixels(int(position)) for position in positions], self.device)
        shapes = self.shapes[positions]
        table = np.concatenate([self.starts[positions, None], shapes], axis=1)  # (B, 3)
        start, height, width = to_device(torch.from_numpy(table), self.device)[:, :, None, None].unbind(1)
        rows = torch.arange(shapes[:, 0].max(), device=self.device)[:, None]
        columns = torch.arange(shapes[:, 1].max(), device=self.device)
        # The padding repeats the last row and column, so that every address is the picture's own.
        first = start + 3 * (rows.minimum(height - 1) * width + columns.minimum(width - 1))  # (B, H, W)
        return self.resident[first[..., None] + torch.arange(3, device=self.device)]

    def pixels(self, position: int) -> Pixels:
        """One picture on the host, (H, W, 3)."""
        flat = self.host[self.starts[position] : self.starts[position + 1]]
        return flat.reshape(*self.shape(position), 3)


def stacked(pictures: Sequence[Pixels], device: torch.device) -> Tensor:
    """Pictures of any sizes as one batch on a device, padded at the right and bottom: (B, H, W, 3) bytes."""
    height, width = (max(pixels.shape[axis] for pixels in pictures) for axis in (0, 1))
    batch = np.zeros((len(pictures), height, width, 3), np.uint8)
    for row, pixels in zip(batch, pictures, strict=True):
        row[: pixels.shape[0], : pixels.shape[1]] = pixels
    return to_device(torch.from_numpy(batch), device)


def _noting(pictures: Iterable[Pixels], shapes: list[tuple[int, int]]) -> Iterator[Pixels]:
    for pixels in pictures:
        shapes.append((pixels.shape[0], pixels.shape[1]))
        yield pixels


def _side_by_side(pictures: Iterable[Pixels], in_memory: int) -> Pixels:
    """All bytes in a row: in memory, or once they are more than `in_memory`, mapped from a file that has no name."""
    held: list[Pixels] = []
    size = 0
    rest = iter(pictures)
    for pixels in rest:
        held.append(pixels.reshape(-1))
        size += pixels.nbytes
        if size > in_memory:
            break
    else:
        return np.concatenate(held) if held else np.zeros(0, np.uint8)
    with tempfile.TemporaryFile() as file:
        for pixels in chain(held, rest):
            file.write(pixels.tobytes())
        file.flush()
        return np.memmap(file, dtype=np.uint8, mode="c")  # torch wants memory that could be written to; nobody does
