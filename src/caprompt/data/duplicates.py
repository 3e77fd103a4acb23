"""Pictures that occur twice.

Files are compared by their bytes (and only those of equal length are read), everything else by decoded pixels; where files meet
pictures in memory, the files are decoded too. The same scene saved anew with loss is another picture here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

from caprompt.data.images import ImageInput, decode, hash_image
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["contents", "find_duplicates"]


def contents(pictures: Sequence[ImageInput]) -> list[int]:
    """A number for each picture; equal pictures have equal numbers. One that cannot be read is like no other.

    >>> import numpy as np
    >>> black, white = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    >>> contents([black, white, black.copy()])
    [0, 1, 0]
    """
    all_files = all(isinstance(picture, Path) for picture in pictures)
    keys = _file_keys(pictures) if all_files else [_pixel_key(picture) for picture in pictures]
    number: dict[Hashable, int] = {}
    return [number.setdefault(position if key is None else key, position) for position, key in enumerate(keys)]


def find_duplicates(samples: Samples, among: Samples) -> list[int]:
    """The positions of those of `samples` whose picture is also in `among`, whatever its label there."""
    numbers = contents([*among.pictures, *samples.pictures])
    known = set(numbers[: len(among)])
    return [position for position, number in enumerate(numbers[len(among) :]) if number in known]


def _file_keys(pictures: Sequence[ImageInput]) -> list[bytes | None]:
    lengths = [_length(picture) for picture in pictures]
    shared = Counter(lengths)
    return [_file_key(picture) if shared[length] > 1 else None for picture, length in zip(pictures, lengths, strict=True)]


def _length(picture: ImageInput) -> int | None:
    assert isinstance(picture, Path)
    try:
        return picture.stat().st_size
    except (OSError, ValueError):  # ValueError: a NUL character in the path
        return None


def _file_key(picture: ImageInput) -> bytes | None:
    try:
        return hash_image(picture)
    except (DataError, ValueError):
        return None


def _pixel_key(picture: ImageInput) -> bytes | None:
    try:
        return hash_image(decode(picture))
    except DataError:
        return None
