"""Decoded pictures kept in memory, so that the second epoch decodes nothing."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from threading import Lock

from caprompt.data.images import ImageInput, Pixels, decode

__all__ = ["ImageCache"]


class ImageCache:
    """Decodes pictures and keeps them until `budget_bytes` are full; the rest are decoded at every call.

    Nothing is ever thrown out: an epoch visits every picture once, and then a cache that evicts the oldest finds none.
    `decoded` counts the pictures decoded so far. Safe to use from several threads.
    """

    def __init__(self, budget_bytes: int = 2 * 1024**3, shrink_to: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.shrink_to = shrink_to
        self.decoded = 0
        self._used = 0
        # The picture is kept beside its pixels so that an object's id stays its own.
        self._kept: dict[Hashable, tuple[ImageInput, Pixels]] = {}
        self._lock = Lock()

    def get(self, picture: ImageInput) -> Pixels:
        """The picture's pixels, (H, W, 3); do not write into them."""
        key = _key(picture)
        with self._lock:
            if key in self._kept:
                return self._kept[key][1]
        pixels = decode(picture, self.shrink_to)
        with self._lock:
            self.decoded += 1
            if key not in self._kept and self._used + pixels.nbytes <= self.budget_bytes:
                self._kept[key] = picture, pixels
                self._used += pixels.nbytes
        return pixels


def _key(picture: ImageInput) -> Hashable:
    """A file by path, time and size, so that one that was changed is read again; an object by identity."""
    if not isinstance(picture, Path):
        return id(picture)
    try:
        facts = picture.stat()
    except (OSError, ValueError):  # never kept under this key: `decode` says what is wrong with the file
        return picture
    return picture, facts.st_mtime_ns, facts.st_size
