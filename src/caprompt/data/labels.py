"""Labels as callers pass them: text, integers, or numbers of classes whose names are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from caprompt.errors import DataError

__all__ = ["Label", "Names", "convert_labels", "index_names", "rename_numbers"]

Label: TypeAlias = str | int
Names: TypeAlias = Sequence[str] | Mapping[int, str]  # the name of each class, by its number


def convert_labels(labels: Iterable[Any], names: Names | None = None) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return labels as class names, and which of these stand for integers.

    >>> convert_labels([7, 7, "cat"])
    (('7', '7', 'cat'), frozenset({'7'}))
    >>> convert_labels([1, 0], names=["cat", "dog"])
    (('dog', 'cat'), frozenset())
    """
    # tolist() converts the elements of an array or a tensor to Python scalars
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise DataError(f"the labels are a single {type(values).__name__}; give a sequence with a label for each image")
    known = None if names is None else index_names(names)
    converted = [_convert_label(label, index, known) for index, label in enumerate(values)]
    integers = frozenset(str(label) for label in converted if isinstance(label, int))
    mixed = integers.intersection(label for label in converted if isinstance(label, str))
    if mixed:
        raise DataError(f"'{min(mixed)}' is both an integer and a text among the labels; use one of the two")
    return tuple(str(label) for label in converted), integers


def index_names(names: Names) -> dict[int, str]:
    """Return the names of classes by number; raise if two are equal or one is not a text.

    >>> index_names(["cat", "dog"])
    {0: 'cat', 1: 'dog'}
    """
    if isinstance(names, str) or not isinstance(names, (Sequence, Mapping, np.ndarray)):
        raise DataError(f"names is a {type(names).__name__}; give a list of class names, or a dictionary from numbers to names")
    known = dict(names) if isinstance(names, Mapping) else dict(enumerate(names))
    for number, name in known.items():
        if not isinstance(number, (int, np.integer)) or not isinstance(name, str):
            raise DataError(f"names has the entry {number!r}: {name!r}; give a text for each number")
    if len(set(known.values())) < len(known):
        twice = next(name for name in known.values() if list(known.values()).count(name) > 1)
        raise DataError(f"names has '{twice}' twice; give every class a name of its own")
    return {int(number): str(name) for number, name in known.items()}


def rename_numbers(labels: Iterable[str], names: Names) -> tuple[str, ...]:
    """Return text labels from a file, with numbers replaced by the names of their classes.

    >>> rename_numbers(["1", "0", "fox"], ["cat", "dog"])
    ('dog', 'cat', 'fox')
    """
    known = index_names(names)
    return tuple(_find_name(int(label), index, known) if label.isdecimal() else label for index, label in enumerate(labels))


def _convert_label(label: Any, index: int, names: Mapping[int, str] | None) -> Label:
    if hasattr(label, "item") and not isinstance(label, str) and getattr(label, "ndim", 0) == 0:
        label = label.item()  # of numpy or torch
    if isinstance(label, (str, bool)):
        return str(label)
    if not isinstance(label, int):
        kind = "missing" if label is None else f"a {type(label).__name__}"
        raise DataError(f"label {index} is {kind}; labels must be strings or integers")
    return label if names is None else _find_name(label, index, names)


def _find_name(label: int, index: int, names: Mapping[int, str]) -> str:
    if label not in names:
        raise DataError(f"label {index} is {label}, which is none of the {len(names)} named classes; give a name for each number")
    return names[label]
