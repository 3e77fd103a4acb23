"""What classes look like, in words: a plain text file, one line per class, `name: attribute, attribute, ...`.

    tabby: striped fur, whiskers, green eyes
    sparrow: brown feathers, short beak

Two attributes are as alike as their sets of words (lower case, without punctuation): the words they share over all their words
(Jaccard). How far old classes cover what new ones look like is the mean, over the attributes of the old ones, of the likeness to
the most alike attribute of the new ones; 1 where every old attribute comes again, 0 where no word does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from caprompt.errors import DataError

__all__ = ["Attribute", "attributes_of", "likeness", "read_descriptions", "similarity"]

Attribute = frozenset[str]  # the words of one attribute


def read_descriptions(path: str | Path) -> dict[str, list[Attribute]]:
    """The attributes of every class in a file of descriptions."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the descriptions '{path}' cannot be read: {error}") from error
    found: dict[str, list[Attribute]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, rest = line.partition(":")
        attributes = [words for part in rest.split(",") if (words := words_of(part))]
        if not attributes:
            raise DataError(f"line {number} of '{path}' should read 'name: attribute, attribute, ...', not '{line.strip()}'")
        found[name.strip()] = attributes
    return found


def words_of(text: str) -> Attribute:
    """The set of words.

    >>> sorted(words_of(" Green-ish eyes, green!"))
    ['eyes', 'green', 'ish']
    """
    return frozenset(re.findall(r"\w+", text.lower()))


def attributes_of(names: Sequence[str], descriptions: Mapping[str, list[Attribute]], path: str | Path) -> list[Attribute]:
    """All attributes of some classes; each of them must be described."""
    for name in names:
        if name not in descriptions:
            raise DataError(f"'{path}' does not describe the class '{name}'; add a line '{name}: attribute, attribute, ...'")
    return [attribute for name in names for attribute in descriptions[name]]


def likeness(one: Attribute, other: Attribute) -> float:
    """Shared words over all words.

    >>> likeness(words_of("striped fur"), words_of("soft striped fur"))
    0.6666666666666666
    """
    return len(one & other) / len(one | other)


def similarity(old: Sequence[Attribute], new: Sequence[Attribute]) -> float:
    """How much of the old classes' attributes comes again in the new classes', from 0 to 1."""
    return sum(max(likeness(attribute, other) for other in new) for attribute in old) / len(old)
