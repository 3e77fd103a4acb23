"""`Samples`: images and their labels."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from caprompt.data.class_names import check_class_name, natural_key, normalize_class_name
from caprompt.data.images import ImageInput, hash_image
from caprompt.data.prefetch import count_decode_threads, prefetch_map
from caprompt.errors import DataError

__all__ = ["Samples"]

HASHED_TOGETHER = 8  # images that are handed to a thread at once, which takes a while
MIN_HASHED_IN_THREADS = 64  # images; starting threads takes as long as hashing a few


@dataclass(frozen=True, repr=False)
class Samples:
    """Labeled images in a fixed order; `skipped` has a warning for each file that was skipped.

    >>> import numpy as np
    >>> samples = Samples((np.zeros((2, 2), np.uint8),) * 3, ("cat", "dog", "cat"))
    >>> samples, samples.classes, samples.counts()
    (Samples(3 images of 2 classes), ('cat', 'dog'), {'cat': 2, 'dog': 1})
    """

    images: tuple[ImageInput, ...]
    labels: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    published: bool = False  # a published benchmark, used unchanged even where its labels conflict
    integers: frozenset[str] | None = None  # classes whose labels were integers; None for text from files, which fits both

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"there are {len(self.images)} images but {len(self.labels)} labels; give one label for each image")
        composed = {label: normalize_class_name(label) for label in set(self.labels)}
        if any(label != name for label, name in composed.items()):
            object.__setattr__(self, "labels", tuple(composed[label] for label in self.labels))
        for name in self.classes:
            check_class_name(name)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Samples({len(self)} images of {len(self.classes)} classes)"

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Distinct labels in natural order, "class2" before "class10"."""
        return tuple(sorted(set(self.labels), key=natural_key))

    @cached_property
    def hashes(self) -> tuple[bytes, ...]:
        """Hashes of the images' contents (`images.hash_image`)."""
        workers = count_decode_threads() if len(self) >= MIN_HASHED_IN_THREADS else 0
        parts = (self.images[start : start + HASHED_TOGETHER] for start in range(0, len(self), HASHED_TOGETHER))
        hashes = prefetch_map(lambda part: [hash_image(image) for image in part], parts, workers, ahead=4 * workers)
        return tuple(chain.from_iterable(hashes))

    @contextmanager
    def hash_aside(self) -> Iterator[Callable[[], None]]:
        """Compute `hashes` in a thread while the context is entered; the function that it gives raises if that has failed."""
        with ThreadPoolExecutor(1, thread_name_prefix="caprompt-hash") as pool:
            hashing = pool.submit(lambda: self.hashes)

            def raise_failure() -> None:
                if hashing.done():
                    hashing.result()

            yield raise_failure

    def counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        counter = Counter(self.labels)
        return {name: counter[name] for name in self.classes}

    def select(self, indices: Iterable[int]) -> Samples:
        """Return the samples at these indices, in the order of the indices."""
        selected = [int(index) for index in indices]
        images, labels = tuple(self.images[i] for i in selected), tuple(self.labels[i] for i in selected)
        return Samples(images, labels, published=self.published, integers=self.integers)

    def select_classes(self, names: Iterable[str]) -> Samples:
        """Return the samples of these classes, in their current order."""
        wanted = frozenset(names)
        return self.select(i for i, label in enumerate(self.labels) if label in wanted)

    def select_per_class(self, count: int) -> Samples:
        """Return the first `count` samples of each class, or all of a smaller class, in order."""
        seen: Counter[str] = Counter()
        selected = []
        for index, label in enumerate(self.labels):
            seen[label] += 1
            if seen[label] <= count:
                selected.append(index)
        return self.select(selected)

    def digest(self) -> str:
        """Return a hash of all labels and image contents, in order.

        A resumed run recognizes its data by it. File names are not hashed: a folder that was moved
        is still the same data.
        """
        total = hashlib.sha256()
        for digest, label in zip(self.hashes, self.labels, strict=True):
            total.update(hashlib.sha256(label.encode()).digest() + digest)
        return total.hexdigest()
