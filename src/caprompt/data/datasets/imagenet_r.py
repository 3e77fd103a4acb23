"""ImageNet-R (Hendrycks et al., 2021): 30,000 renditions (art, cartoons, toys, ...) of 200 ImageNet classes.

It has no official division into training and test images. A copy that is already divided into train/ and test/ is taken as it is.
Else lists in the data folder decide, `imagenet-r_train` and `imagenet-r_test` (.txt or .yaml, such as those that several papers
share); without them our own rule does (see `split_lists`), and what it gave is written there, as `imagenet-r_seed0_train.txt` and
`imagenet-r_seed0_test.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from caprompt.data.datasets._integrity import check_classes, check_count, check_present
from caprompt.data.datasets._locations import Official, opened
from caprompt.data.datasets._split_lists import read_list, stratified, write_list
from caprompt.data.datasets._wordnet import class_names
from caprompt.data.images import ImageInput
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError

__all__ = ["IMAGENET_R", "load_imagenet_r"]

IMAGENET_R = Official(
    name="imagenet-r",
    title="ImageNet-R",
    folder="imagenet-r",
    archive="imagenet-r.tar",
    url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
    checksum="md5:a61312130a589d0ca1a8fca1f2bd3337",
)
SEED = 0


def load_imagenet_r(folder: Path | None = None, classes: int = 200, images: int = 30_000) -> tuple[Samples, Samples]:
    """Training and test images, 24,000 and 6,000; classes are called like "n01443537 goldfish"."""
    folder = folder or opened(IMAGENET_R)
    divided = all((folder / part).is_dir() for part in ("train", "test"))
    train, test = (
        (read_source(folder / "train"), read_source(folder / "test")) if divided else _divided_by_us(folder, classes, images)
    )
    numbers = sorted({*train.classes, *test.classes})
    check_count(folder, "classes", len(numbers), classes)
    check_classes(folder, train, test, numbers)
    if divided:
        check_count(folder, "images", len(train) + len(test), images)
    names = class_names(numbers, folder / "README.txt")
    train, test = (replace(part, labels=tuple(names[label] for label in part.labels)) for part in (train, test))
    return train, test


def _divided_by_us(folder: Path, classes: int, images: int) -> tuple[Samples, Samples]:
    found = read_source(folder)
    check_count(folder, "classes", len(found.classes), classes)
    lists = [path for part in ("train", "test") if (path := _given_list(folder, part))]
    if len(lists) == 1:
        raise DataError(f"there is only one list of images, '{lists[0]}'; put the other beside it or remove it")
    if not lists:
        check_count(folder, "images", len(found), images)
        return _by_our_rule(folder, found)
    train, test = (_listed(folder, path) for path in lists)
    _check_apart(train, test, lists[1])
    return train, test


def _given_list(folder: Path, part: str) -> Path | None:
    lists = (folder.parent / f"imagenet-r_{part}{suffix}" for suffix in (".txt", ".yaml", ".yml"))
    found = [path for path in lists if path.is_file()]
    if len(found) > 1:
        raise DataError(f"there are two lists of {part} images, '{found[0]}' and '{found[1]}'; remove one of them")
    return found[0] if found else None


def _listed(folder: Path, path: Path) -> Samples:
    files = read_list(path)
    check_present(folder, path, [folder / file for file in files])
    return _samples(folder, files)


def _by_our_rule(folder: Path, found: Samples) -> tuple[Samples, Samples]:
    train, test = stratified([_relative(folder, picture) for picture in found.pictures], SEED)
    if os.access(folder.parent, os.W_OK):  # a read-only disk is no reason to stop: the rule always gives the same
        write_list(folder.parent / f"imagenet-r_seed{SEED}_train.txt", train)
        write_list(folder.parent / f"imagenet-r_seed{SEED}_test.txt", test)
    return _samples(folder, train), _samples(folder, test)


def _relative(folder: Path, picture: ImageInput) -> str:
    assert isinstance(picture, Path)
    return picture.relative_to(folder).as_posix()


def _samples(folder: Path, files: Sequence[str]) -> Samples:
    return Samples(tuple(folder / file for file in files), tuple(file.split("/")[0] for file in files))


def _check_apart(train: Samples, test: Samples, path: Path) -> None:
    both = set(train.pictures) & set(test.pictures)
    if both:
        raise DataError(
            f"'{path}' lists {len(both):,} image(s) that are also in the training list; an image belongs to one of them"
        )
