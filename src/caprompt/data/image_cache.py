"""Cache of decoded images in RAM, so that only the first epoch decodes."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from pathlib import Path
from threading import Lock, local

import numpy as np

from caprompt.data.images import ContentKey, ImageInput, Pixels, PlainJPEG, decode, read_jpeg

__all__ = ["ImageCache"]

SLAB_BYTES = 16 * 1024**2  # of memory that a thread takes at once


class _Slabs(local):
    """Memory for images that stay in it, a large piece for each thread.

    The system gives it in large pages, which takes a fraction of the time that it takes to give each image its own.
    """

    def __init__(self) -> None:
        self.free = np.empty(0, np.uint8)

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """Return an array that is not initialized."""
        size = prod(shape)
        if size > len(self.free):
            self.free = np.empty(max(size, SLAB_BYTES), np.uint8)
        taken, self.free = self.free[:size], self.free[size:]
        return taken.reshape(shape)


class ImageCache:
    """A cache that decodes images and stores up to `budget_bytes` of pixels.

    Further images are decoded at every call. Nothing is ever evicted: every epoch visits every
    image once, and with that access pattern an LRU cache would never hit. `num_decoded` counts the
    decoded images. Thread-safe.
    """

    def __init__(self, budget_bytes: int = 2 * 1024**3, shrink_to: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.shrink_to = shrink_to
        self.num_decoded = 0
        self.content_keys: dict[int, ContentKey] = {}  # of JPEG files that were read, by the id of the image
        self._used_bytes = 0
        self._slabs = _Slabs()
        # The image is stored next to its pixels so that its id is not reused while it is a key.
        self._entries: dict[Hashable, tuple[ImageInput, Pixels]] = {}
        self._lock = Lock()

    def get(self, image: ImageInput) -> Pixels:
        """Return the image's pixels, (H, W, 3); do not write into them."""
        if self.budget_bytes <= 0:
            pixels = self._decode(image)
            with self._lock:
                self.num_decoded += 1
            return pixels
        key = _make_key(image)
        with self._lock:
            if key in self._entries:
                return self._entries[key][1]
        pixels = self._decode(image)
        with self._lock:
            self.num_decoded += 1
            if key not in self._entries and self._used_bytes + pixels.nbytes <= self.budget_bytes:
                self._entries[key] = image, pixels
                self._used_bytes += pixels.nbytes
        return pixels

    def read_jpeg(self, image: ImageInput) -> PlainJPEG | None:
        """Read a file as `images.read_jpeg` does, and note what it can be told from others by."""
        file = read_jpeg(image, self.shrink_to)
        if file is not None:
            self.content_keys[id(image)] = file.content_key
        return file

    def _decode(self, image: ImageInput) -> Pixels:
        file = self.read_jpeg(image) if isinstance(image, Path) else None  # a dataset might read any other twice
        if file is None:
            return decode(image, self.shrink_to)
        will_stay = not file.is_shrunk and self._used_bytes + prod(file.shape) <= self.budget_bytes
        pixels = file.decode(self._slabs.take(file.shape) if will_stay else None)
        return decode(image, self.shrink_to) if pixels is None else pixels


def _make_key(image: ImageInput) -> Hashable:
    """Identify a file by path, mtime and size (a changed file is read again), an object by id."""
    if not isinstance(image, Path):
        return id(image)
    try:
        status = image.stat()
    except (OSError, ValueError):  # nothing is stored under this key: `decode` raises an error for the file
        return image
    return image, status.st_mtime_ns, status.st_size
