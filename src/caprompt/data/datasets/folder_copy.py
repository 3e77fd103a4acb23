"""A dataset as image files: train/ and test/ with a sub-folder per class, which every command reads."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from caprompt.data.datasets.registry import Dataset
from caprompt.data.images import decode
from caprompt.data.samples import Samples
from caprompt.errors import InputError, OptionError, UnknownNameError

__all__ = ["check_folder", "select_images", "write_folders"]


def select_images(dataset: Dataset, classes: Sequence[str] = (), per_class: int | None = None) -> Dataset:
    """Return the dataset with some of its classes, and at most `per_class` training and test images of each."""
    for name in classes:
        if name not in dataset.train.classes:
            raise UnknownNameError("class", name, dataset.train.classes)
    if per_class is not None and per_class < 1:
        raise OptionError(f"the number of images of a class must be positive, not {per_class}")

    def select(samples: Samples) -> Samples:
        chosen = samples.select_classes(classes) if classes else samples
        return chosen if per_class is None else chosen.select_per_class(per_class)

    return replace(dataset, train=select(dataset.train), test=select(dataset.test))


def check_folder(folder: Path) -> None:
    """Raise `InputError` unless a folder is new or empty."""
    if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise InputError(f"'{folder}' exists and is not an empty folder; choose another one")


def write_folders(dataset: Dataset, folder: Path) -> None:
    """Write the images to `folder`/train and `folder`/test, completely or not at all; files are copied, arrays become PNG files."""
    check_folder(folder)
    draft = folder.with_name(f".{folder.name}.next-{os.getpid()}")
    try:
        for part, samples in (("train", dataset.train), ("test", dataset.test)):
            _write_samples(samples, draft / part)
        if folder.exists():
            folder.rmdir()  # an empty one; not every system renames onto it
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_samples(samples: Samples, folder: Path) -> None:
    """Write images as numbered files, a sub-folder per class."""
    numbers: Counter[str] = Counter()
    for image, label in zip(samples.images, samples.labels, strict=True):
        numbers[label] += 1
        path = folder / label / f"{numbers[label]:04d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, Path):
            shutil.copyfile(image, path.with_suffix(image.suffix.lower()))
        else:
            Image.fromarray(decode(image)).save(path.with_suffix(".png"))
