"""Validity, Unicode form and natural ordering of class names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from caprompt.errors import DataError

__all__ = ["check_class_name", "natural_key", "normalize_class_name", "normalize_saved_names"]

_DIGITS = re.compile(r"([0-9]+)")
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f]')
_RESERVED = re.compile(r"(CON|PRN|AUX|NUL|COM[1-9]|LPT[1-9])(\..*)?", re.IGNORECASE)  # devices on Windows


def natural_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a key for natural sorting: digits by their value, letters regardless of case.

    >>> sorted(["class10", "Class3", "class2"], key=natural_key)
    ['class2', 'Class3', 'class10']
    """
    parts = _DIGITS.split(name)
    key = tuple([(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts if part])
    return key, name  # the name itself orders "a1", "a01" and "A1"


def normalize_class_name(name: str) -> str:
    """Return the composed form (NFC) of a name: macOS stores "é" as two characters, other systems as one.

    >>> normalize_class_name("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", name)


def normalize_saved_names(names: Sequence[str]) -> list[str]:
    """Return the normalized names of a saved model's classes.

    Models of earlier versions may have classes that differ in their Unicode form only. These keep their names: the one in
    composed form is the class that images are learned under from now on.

    >>> normalize_saved_names(["e\\u0301", "a"]), normalize_saved_names(["e\\u0301", "\\u00e9"]) == ["e\\u0301", "\\u00e9"]
    (['é', 'a'], True)
    """
    distinct = set(names)
    counts = Counter(normalize_class_name(name) for name in distinct)
    return [composed if counts[composed := normalize_class_name(name)] == 1 else name for name in names]


def check_class_name(name: str) -> None:
    """Raise `DataError` for a name that cannot be a folder name on every common system.

    Classes are commonly stored as folders.

    >>> check_class_name("sea lion")
    >>> check_class_name("a/b")
    Traceback (most recent call last):
    caprompt.errors.DataError: 'a/b' cannot be a class name: it contains '/'; rename the class
    """
    problem = _find_problem(name)
    if problem:
        raise DataError(f"{name!r} cannot be a class name: {problem}; rename the class")


def _find_problem(name: str) -> str | None:
    if name in ("", ".", ".."):
        return "it must have a letter or digit"
    if name != name.strip():
        return "it begins or ends with a blank"
    if name.endswith("."):
        return "it ends with a dot"
    if match := _FORBIDDEN.search(name):
        return f"it contains {match.group()!r}"
    if _RESERVED.fullmatch(name):
        return "it is a reserved device name on Windows"
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return "it is longer than 255 bytes" if len(encoded) > 255 else None
