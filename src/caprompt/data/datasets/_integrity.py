"""Is a copy of a data set whole? If not, one sentence with what was found and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["check_classes", "check_count", "check_present"]


def check_count(where: Path, what: str, found: int, expected: int) -> None:
    """Refuse a copy with another number of things.

    >>> check_count(Path("cub"), "training images", 5990, 5994)
    Traceback (most recent call last):
    caprompt.errors.DataError: 'cub' is damaged or incomplete: found 5,990 training images, expected 5,994; get it anew
    """
    if found != expected:
        raise DataError(f"'{where}' is damaged or incomplete: found {found:,} {what}, expected {expected:,}; get it anew")


def check_classes(where: Path, train: Samples, test: Samples, names: Sequence[str]) -> None:
    """Refuse a copy in which one of the classes has no training or no test images."""
    for what, samples in (("training", train), ("test", test)):
        missing = [name for name in names if name not in set(samples.classes)]
        if missing:
            raise DataError(
                f"'{where}' is damaged or incomplete: class '{missing[0]}' has no {what} images "
                f"(found {len(names) - len(missing)} classes, expected {len(names)}); get it anew"
            )


def check_present(where: Path, listed_in: Path, files: Sequence[Path]) -> None:
    """Refuse a list that names files which are not there."""
    absent = [file for file in files if not file.is_file()]
    if absent:
        here = len(files) - len(absent)
        raise DataError(
            f"'{listed_in}' lists images that are not in '{where}': found {here:,}, expected {len(files):,}, the first missing is "
            f"'{absent[0].relative_to(where).as_posix()}'; get the data set anew, or the list that belongs to it"
        )
