"""Looking at every picture once, before hours are spent on learning from them."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from caprompt.data.image_cache import ImageCache
from caprompt.data.images import ADVICE, ImageInput, hash_image
from caprompt.data.prefetch import in_order
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["check_one_class_each", "validate_images"]

Found = TypeVar("Found")

FIRST = 16  # pictures that tell whether threads pay
QUICK = 1e-3  # seconds a picture; handing a smaller one to a thread takes longer than looking at it


def validate_images(
    samples: Samples,
    store: ImageCache,
    skip_bad: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Samples:
    """The samples whose pictures can be decoded; `store` holds them afterwards, as far as it has room.

    A bad picture is an error, or with `skip_bad` left out and told of in `skipped`.
    `on_progress(done, total)` is called after each picture.
    """

    def trouble(position: int) -> str | None:
        try:
            store.get(samples.pictures[position])
        except DataError as error:
            if isinstance(samples.pictures[position], Path):
                return str(error)
            return f"image {position} of class '{samples.labels[position]}' cannot be used: {error}"
        return None

    good, skipped = [], []
    with closing(looked_at(trouble, len(samples))) as troubles:
        for position, problem in enumerate(troubles):
            if problem is None:
                good.append(position)
            elif skip_bad:
                skipped.append(f"{problem.removesuffix(ADVICE)}, left out")
            else:
                raise DataError(problem)
            if on_progress is not None:
                on_progress(position + 1, len(samples))

    kept = samples.select(good)
    for name in samples.classes:
        if name not in kept.classes:
            raise DataError(f"none of the images of class '{name}' can be read; mend them or remove the class")
    if not samples.published:  # CIFAR-100, for one, holds some pictures under two labels, and is compared as it is
        check_one_class_each(kept)
    return replace(kept, skipped=samples.skipped + tuple(skipped))


def looked_at(look: Callable[[int], Found], count: int) -> Generator[Found, None, None]:
    """`map(look, range(count))`, in threads where that pays.

    >>> list(looked_at(abs, 3))
    [0, 1, 2]
    """
    seconds = [0.0]
    for position in range(min(FIRST, count)):
        began = time.perf_counter()
        found = look(position)
        seconds.append(time.perf_counter() - began)
        yield found
    workers = min(8, os.cpu_count() or 1) if median(seconds) > QUICK else 0
    with closing(in_order(look, range(FIRST, count), workers, ahead=4 * workers)) as rest:
        yield from rest


def check_one_class_each(samples: Samples) -> None:
    """Refuse a picture that is in two classes: no classifier can learn which one it is."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for position, picture in enumerate(samples.pictures):
        alike[_size(picture)].append(position)
    for positions in alike.values():
        if len({samples.labels[position] for position in positions}) > 1:  # contents are hashed only where needed
            _check_alike(samples, positions)


def _check_alike(samples: Samples, positions: list[int]) -> None:
    first: dict[bytes, int] = {}
    for position in positions:
        try:
            other = first.setdefault(hash_image(samples.pictures[position]), position)
        except DataError:  # an unreadable picture is `verified`'s to report, or to skip
            continue
        if samples.labels[other] != samples.labels[position]:
            raise DataError(f"{_name(samples, other)} and {_name(samples, position)} are the same image; keep it in one class")


def _size(picture: ImageInput) -> Hashable:
    """What equal pictures have in common and most others have not, without reading any pixels."""
    if isinstance(picture, np.ndarray):
        return picture.shape
    if isinstance(picture, Path):
        try:
            return picture.stat().st_size
        except (OSError, ValueError):  # ValueError: a NUL character in the path
            return None
    return picture.size


def _name(samples: Samples, position: int) -> str:
    picture, label = samples.pictures[position], samples.labels[position]
    return f"'{picture}' (class '{label}')" if isinstance(picture, Path) else f"image {position} (class '{label}')"
