"""Looking at every picture once, before hours are spent on learning from them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from caprompt.data.images import ADVICE, Picture, fingerprint
from caprompt.data.prefetch import in_order
from caprompt.data.samples import Samples
from caprompt.data.store import ImageStore
from caprompt.errors import DataError

__all__ = ["check_one_class_each", "verified"]

PORTION = 8  # pictures that a thread looks at in one go


def verified(
    samples: Samples,
    store: ImageStore,
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
    workers = min(8, os.cpu_count() or 1)
    # Some at a time: handing over a small picture costs as much as decoding it.
    portions = (range(start, min(start + PORTION, len(samples))) for start in range(0, len(samples), PORTION))
    with closing(in_order(lambda portion: [*map(trouble, portion)], portions, workers, ahead=2 * workers)) as found:
        for position, problem in enumerate(chain.from_iterable(found)):
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
            other = first.setdefault(fingerprint(samples.pictures[position]), position)
        except DataError:  # an unreadable picture is `verified`'s to report, or to skip
            continue
        if samples.labels[other] != samples.labels[position]:
            raise DataError(f"{_name(samples, other)} and {_name(samples, position)} are the same image; keep it in one class")


def _size(picture: Picture) -> Hashable:
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
