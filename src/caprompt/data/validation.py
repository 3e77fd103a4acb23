"""Validation of all images before a long training: every image decodes, and none has two labels."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from caprompt.data.image_cache import ImageCache
from caprompt.data.images import PART_BYTES, READ_FLAGS, SKIP_HINT, ContentKey, ImageInput, hash_image
from caprompt.data.prefetch import count_decode_threads, prefetch_map
from caprompt.data.samples import Samples
from caprompt.errors import DataError
from caprompt.utils.communication import ALONE, Communicator

__all__ = ["check_label_conflicts", "explain_unreadable", "map_in_threads", "validate_images"]

R = TypeVar("R")

NUM_TIMED = 6  # calls that are timed to decide whether to use threads
MIN_THREADED_SECONDS = 1e-4  # per call; shorter ones mostly wait for each other, since only one thread at a time runs Python
CALLS_TOGETHER = 4  # that are handed to a thread at once, which takes a while


def validate_images(
    samples: Samples,
    cache: ImageCache,
    skip_bad: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    communicator: Communicator = ALONE,
) -> Samples:
    """Return the samples whose images can be decoded.

    `cache` stores the decoded images, as far as its budget allows. An unreadable image raises
    `DataError`, or with `skip_bad` is skipped and reported in `skipped`. `on_progress(done, total)`
    is called after each image. Of several processes, each decodes its share and tells the others.
    """

    def find_problem(index: int) -> str | None:
        try:
            cache.get(samples.images[index])
        except DataError as error:
            if isinstance(samples.images[index], Path):
                return str(error)
            return f"image {index} of class '{samples.labels[index]}' cannot be used: {error}"
        return None

    readable, skipped = [], []
    with closing(_share_problems(find_problem, len(samples), communicator)) as problems:
        for index, problem in enumerate(problems):
            if problem is None:
                readable.append(index)
            elif skip_bad:
                skipped.append(f"{problem.removesuffix(SKIP_HINT)}, skipped")
            else:
                raise DataError(problem)
            if on_progress is not None:
                on_progress(index + 1, len(samples))

    valid = samples.select(readable)
    for name in samples.classes:
        if name not in valid.classes:
            raise DataError(f"none of the images of class '{name}' can be read; repair them or remove the class")
    if not samples.published:  # e.g. CIFAR-100 has some images under two labels, and is compared unchanged
        check_label_conflicts(valid, cache.content_keys)
    return replace(valid, skipped=samples.skipped + tuple(skipped))


def _share_problems(
    find_problem: Callable[[int], str | None], count: int, communicator: Communicator
) -> Generator[str | None, None, None]:
    """Yield the problem of each image, or None; with several processes, after each of them has looked at its share."""
    if communicator.size == 1:
        yield from map_in_threads(find_problem, count)
        return
    own = range(communicator.rank, count, communicator.size)
    shares = communicator.gather(list(map_in_threads(lambda position: find_problem(own[position]), len(own))))
    if sum(map(len, shares)) != count:
        raise DataError("the processes of this call do not read the same images; give all of them the same folder")
    yield from (shares[index % communicator.size][index // communicator.size] for index in range(count))


def map_in_threads(function: Callable[[int], R], count: int) -> Generator[R, None, None]:
    """Yield `map(function, range(count))`, computed in threads if the first calls are slow.

    >>> list(map_in_threads(abs, 3))
    [0, 1, 2]
    """
    seconds = [0.0]
    for index in range(min(NUM_TIMED, count)):
        start = time.perf_counter()
        result = function(index)
        seconds.append(time.perf_counter() - start)
        yield result
    if median(seconds) <= MIN_THREADED_SECONDS:
        yield from map(function, range(NUM_TIMED, count))
        return
    workers = count_decode_threads()
    parts = [range(start, min(start + CALLS_TOGETHER, count)) for start in range(NUM_TIMED, count, CALLS_TOGETHER)]
    with closing(prefetch_map(lambda part: list(map(function, part)), parts, workers, ahead=2 * workers)) as remaining:
        yield from chain.from_iterable(remaining)


@contextmanager
def explain_unreadable(samples: Samples) -> Iterator[None]:
    """Where images are decoded without a check before, let an unreadable one raise as `validate_images` does."""
    try:
        yield
    except DataError:
        validate_images(samples, ImageCache(budget_bytes=0))
        raise


def check_label_conflicts(samples: Samples, keys: Mapping[int, ContentKey] = MappingProxyType({})) -> None:
    """Raise `DataError` for an image that is in two classes, since no classifier can learn that.

    `keys` has what is known of files that were read already, by the id of the image (`ImageCache.content_keys`).
    """

    def get_size(image: ImageInput) -> Hashable:
        key = keys.get(id(image))
        return _get_size(image) if key is None else key[0]

    def read_part(image: ImageInput) -> bytes:
        key = keys.get(id(image))
        return _read_part(image) if key is None else key[1]

    groups = _split_groups(samples, [list(range(len(samples)))], map(get_size, samples.images))
    # Contents are read only where needed, and whole files only where parts of them are the same.
    for read in (read_part, hash_image):
        with closing(_read_keys(read, [samples.images[index] for group in groups for index in group])) as contents:
            groups = _split_groups(samples, groups, contents)
    for group in groups:
        other = next(index for index in group if samples.labels[index] != samples.labels[group[0]])
        raise DataError(f"{_describe(samples, group[0])} and {_describe(samples, other)} are the same image; keep it in one class")


def _split_groups(samples: Samples, groups: Sequence[Sequence[int]], keys: Iterable[Hashable]) -> list[list[int]]:
    """Split groups of images by a key of each, which equal images share; return the parts with more than one label.

    Images whose key is None are left out.
    """
    parts: dict[Hashable, list[int]] = defaultdict(list)
    members = ((number, index) for number, group in enumerate(groups) for index in group)
    for (number, index), key in zip(members, keys, strict=True):
        if key is not None:
            parts[number, key].append(index)
    return [part for part in parts.values() if len({samples.labels[index] for index in part}) > 1]


def _read_keys(read: Callable[[ImageInput], bytes], images: Sequence[ImageInput]) -> Generator[bytes | None, None, None]:
    """Yield what is read of each image, or None for an unreadable one, which `validate_images` reports or skips."""

    def try_to_read(index: int) -> bytes | None:
        try:
            return read(images[index])
        except (DataError, OSError, ValueError):
            return None

    return map_in_threads(try_to_read, len(images))


def _get_size(image: ImageInput) -> Hashable:
    """Return a key that equal images share and most others do not, without reading any pixels."""
    if isinstance(image, np.ndarray):
        return image.shape
    if isinstance(image, Path):
        try:
            return image.stat().st_size
        except (OSError, ValueError):  # ValueError: a NUL character in the path
            return None
    return image.size


def _read_part(image: ImageInput) -> bytes:
    """Return a few bytes of an image's content, from its middle."""
    if isinstance(image, np.ndarray):
        return bytes(image[image.shape[0] // 2].tobytes())
    if not isinstance(image, Path):
        return b""
    file = os.open(image, READ_FLAGS)
    try:
        os.lseek(file, os.fstat(file).st_size // 2, os.SEEK_SET)
        return os.read(file, PART_BYTES)
    finally:
        os.close(file)


def _describe(samples: Samples, index: int) -> str:
    image, label = samples.images[index], samples.labels[index]
    return f"'{image}' (class '{label}')" if isinstance(image, Path) else f"image {index} (class '{label}')"
