"""ImageNet-R (Hendrycks et al., 2021): 30,000 renditions of 200 ImageNet classes.

The renditions are art, cartoons, toys and others. It has no official split. A copy with folders
train/ and test/ is used as it is. Otherwise the lists `imagenet-r_train` and `imagenet-r_test` in
the data folder (.txt or .yaml, such as those that several papers share) define the split. Without
lists a fixed rule does (see `_split_lists`), and its result is written there as
`imagenet-r_seed0_train.txt` and `imagenet-r_seed0_test.txt`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from caprompt.data.datasets._integrity import check_classes, check_count, check_files_exist
from caprompt.data.datasets._locations import OfficialFiles, unpack_dataset
from caprompt.data.datasets._split_lists import read_file_list, split_stratified, write_file_list
from caprompt.data.datasets._wordnet import read_class_names
from caprompt.data.images import ImageInput
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError

__all__ = ["IMAGENET_R", "load_imagenet_r"]

IMAGENET_R = OfficialFiles(
    name="imagenet-r",
    title="ImageNet-R",
    folder="imagenet-r",
    archive="imagenet-r.tar",
    url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
    checksum="md5:a61312130a589d0ca1a8fca1f2bd3337",
)
SPLIT_SEED = 0


def load_imagenet_r(folder: Path | None = None, classes: int = 200, images: int = 30_000) -> tuple[Samples, Samples]:
    """Load 24,000 training and 6,000 test samples; classes are named like "n01443537 goldfish"."""
    folder = folder or unpack_dataset(IMAGENET_R)
    is_split = all((folder / part).is_dir() for part in ("train", "test"))
    train, test = (
        (read_source(folder / "train"), read_source(folder / "test")) if is_split else _load_unsplit(folder, classes, images)
    )
    wordnet_ids = sorted({*train.classes, *test.classes})
    check_count(folder, "classes", len(wordnet_ids), classes)
    check_classes(folder, train, test, wordnet_ids)
    if is_split:
        check_count(folder, "images", len(train) + len(test), images)
    names = read_class_names(wordnet_ids, folder / "README.txt")
    train, test = (replace(part, labels=tuple(names[label] for label in part.labels)) for part in (train, test))
    return train, test


def _load_unsplit(folder: Path, classes: int, images: int) -> tuple[Samples, Samples]:
    samples = read_source(folder)
    check_count(folder, "classes", len(samples.classes), classes)
    lists = [path for part in ("train", "test") if (path := _find_list(folder, part))]
    if len(lists) == 1:
        raise DataError(f"there is only one list of images, '{lists[0]}'; put the other next to it or remove it")
    if not lists:
        check_count(folder, "images", len(samples), images)
        return _split_by_rule(folder, samples)
    train, test = (_load_list(folder, path) for path in lists)
    _check_disjoint(train, test, lists[1])
    return train, test


def _find_list(folder: Path, part: str) -> Path | None:
    candidates = (folder.parent / f"imagenet-r_{part}{suffix}" for suffix in (".txt", ".yaml", ".yml"))
    lists = [path for path in candidates if path.is_file()]
    if len(lists) > 1:
        raise DataError(f"there are two lists of {part} images, '{lists[0]}' and '{lists[1]}'; remove one of them")
    return lists[0] if lists else None


def _load_list(folder: Path, path: Path) -> Samples:
    files = read_file_list(path)
    check_files_exist(folder, path, [folder / file for file in files])
    return _make_samples(folder, files)


def _split_by_rule(folder: Path, samples: Samples) -> tuple[Samples, Samples]:
    train, test = split_stratified([_relative_path(folder, image) for image in samples.images], SPLIT_SEED)
    if os.access(folder.parent, os.W_OK):  # on a read-only disk the rule gives the same result at every call
        write_file_list(folder.parent / f"imagenet-r_seed{SPLIT_SEED}_train.txt", train)
        write_file_list(folder.parent / f"imagenet-r_seed{SPLIT_SEED}_test.txt", test)
    return _make_samples(folder, train), _make_samples(folder, test)


def _relative_path(folder: Path, image: ImageInput) -> str:
    assert isinstance(image, Path)
    return image.relative_to(folder).as_posix()


def _make_samples(folder: Path, files: Sequence[str]) -> Samples:
    return Samples(tuple(folder / file for file in files), tuple(file.split("/")[0] for file in files))


def _check_disjoint(train: Samples, test: Samples, path: Path) -> None:
    common = set(train.images) & set(test.images)
    if common:
        raise DataError(
            f"'{path}' lists {len(common):,} image(s) that are also in the training list; list each image in one of them"
        )
