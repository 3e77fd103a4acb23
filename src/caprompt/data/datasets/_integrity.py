"""Checks that a copy of a dataset is complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["check_classes", "check_count", "check_files_exist"]


def check_count(path: Path, what: str, actual: int, expected: int) -> None:
    """Raise `DataError` if a count is not the expected one.

    >>> check_count(Path("cub"), "training images", 5990, 5994)
    Traceback (most recent call last):
    caprompt.errors.DataError: 'cub' is damaged or incomplete: found 5,990 training images, expected 5,994; download it again
    """
    if actual != expected:
        raise DataError(f"'{path}' is damaged or incomplete: found {actual:,} {what}, expected {expected:,}; download it again")


def check_classes(path: Path, train: Samples, test: Samples, names: Sequence[str]) -> None:
    """Raise `DataError` if one of the classes has no training or no test images."""
    for what, samples in (("training", train), ("test", test)):
        missing = [name for name in names if name not in set(samples.classes)]
        if missing:
            raise DataError(
                f"'{path}' is damaged or incomplete: class '{missing[0]}' has no {what} images "
                f"(found {len(names) - len(missing)} classes, expected {len(names)}); download it again"
            )


def check_files_exist(root: Path, listed_in: Path, files: Sequence[Path]) -> None:
    """Raise `DataError` if a list names files that do not exist."""
    missing = [file for file in files if not file.is_file()]
    if missing:
        num_present = len(files) - len(missing)
        raise DataError(
            f"'{listed_in}' lists images that are not in '{root}': found {num_present:,}, expected {len(files):,}, the first "
            f"missing is '{missing[0].relative_to(root).as_posix()}'; download the dataset again, or get the matching list"
        )
