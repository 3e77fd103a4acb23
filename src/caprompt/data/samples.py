"""Pictures and their labels, side by side."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from caprompt.data.class_names import check_class_name, natural_key
from caprompt.data.images import ImageInput, hash_image
from caprompt.errors import DataError

__all__ = ["Samples"]


@dataclass(frozen=True, repr=False)
class Samples:
    """Labelled pictures in a fixed order; `skipped` holds a sentence about each thing that was left out.

    >>> import numpy as np
    >>> samples = Samples((np.zeros((2, 2), np.uint8),) * 3, ("cat", "dog", "cat"))
    >>> samples, samples.classes, samples.counts()
    (Samples(3 images of 2 classes), ('cat', 'dog'), {'cat': 2, 'dog': 1})
    """

    pictures: tuple[ImageInput, ...]
    labels: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    published: bool = False  # a benchmark as its makers gave it, doubtful labels and all

    def __post_init__(self) -> None:
        if len(self.pictures) != len(self.labels):
            raise DataError(f"there are {len(self.pictures)} images but {len(self.labels)} labels; give one label for each image")
        for name in self.classes:
            check_class_name(name)

    def __len__(self) -> int:
        return len(self.pictures)

    def __repr__(self) -> str:
        return f"Samples({len(self)} images of {len(self.classes)} classes)"

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The distinct labels, "class2" before "class10"."""
        return tuple(sorted(set(self.labels), key=natural_key))

    def counts(self) -> dict[str, int]:
        """How many pictures each class has."""
        numbers = Counter(self.labels)
        return {name: numbers[name] for name in self.classes}

    def select(self, indices: Iterable[int]) -> Samples:
        """The pictures at these positions, in this order."""
        chosen = [int(index) for index in indices]
        return Samples(tuple(self.pictures[i] for i in chosen), tuple(self.labels[i] for i in chosen), published=self.published)

    def of_classes(self, names: Iterable[str]) -> Samples:
        """The pictures of these classes, in the order they have here."""
        wanted = frozenset(names)
        return self.select(i for i, label in enumerate(self.labels) if label in wanted)

    def first_of_each(self, count: int) -> Samples:
        """At most so many pictures of each class, the first ones."""
        seen: Counter[str] = Counter()
        chosen = []
        for position, label in enumerate(self.labels):
            seen[label] += 1
            if seen[label] <= count:
                chosen.append(position)
        return self.select(chosen)

    def digest(self) -> str:
        """A hash of all labels and contents, in order, by which a resumed run knows its data again.

        File names are left out: a folder that was moved is still the same data.
        """
        total = hashlib.sha256()
        for picture, label in zip(self.pictures, self.labels, strict=True):
            total.update(hashlib.sha256(label.encode()).digest() + hash_image(picture))
        return total.hexdigest()
