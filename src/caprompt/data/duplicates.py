"""Detection of duplicate images.

Files are compared by their bytes (only files of equal size are read), images in memory by decoded
pixels. Where files are compared with images in memory, the files are decoded too. A lossy
re-encoding of an image does not count as a duplicate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

from caprompt.data.images import ImageInput, decode, hash_image
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["assign_content_ids", "find_duplicates"]


def assign_content_ids(images: Sequence[ImageInput]) -> list[int]:
    """Return an integer for each image, equal for equal images.

    An unreadable image differs from all others.

    >>> import numpy as np
    >>> black, white = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    >>> assign_content_ids([black, white, black.copy()])
    [0, 1, 0]
    """
    all_files = all(isinstance(image, Path) for image in images)
    keys = _file_keys(images) if all_files else [_pixel_key(image) for image in images]
    ids: dict[Hashable, int] = {}
    return [ids.setdefault(index if key is None else key, index) for index, key in enumerate(keys)]


def find_duplicates(samples: Samples, among: Samples) -> list[int]:
    """Return the indices of `samples` whose image is also in `among`, whatever its label."""
    ids = assign_content_ids([*among.images, *samples.images])
    known = set(ids[: len(among)])
    return [index for index, content_id in enumerate(ids[len(among) :]) if content_id in known]


def _file_keys(images: Sequence[ImageInput]) -> list[bytes | None]:
    sizes = [_file_size(image) for image in images]
    size_counts = Counter(sizes)
    return [_file_key(image) if size_counts[size] > 1 else None for image, size in zip(images, sizes, strict=True)]


def _file_size(image: ImageInput) -> int | None:
    assert isinstance(image, Path)
    try:
        return image.stat().st_size
    except (OSError, ValueError):  # ValueError: a NUL character in the path
        return None


def _file_key(image: ImageInput) -> bytes | None:
    try:
        return hash_image(image)
    except (DataError, ValueError):
        return None


def _pixel_key(image: ImageInput) -> bytes | None:
    try:
        return hash_image(decode(image))
    except DataError:
        return None
