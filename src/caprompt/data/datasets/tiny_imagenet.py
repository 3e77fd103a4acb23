"""Tiny-ImageNet (Stanford CS231n): 200 ImageNet classes at 64 x 64 pixels.

Its validation images are used as the test set. It is read from the official folder, or from one
with a folder per class in train/ and test/ (or val/).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caprompt.data.datasets._integrity import check_classes, check_count, check_files_exist
from caprompt.data.datasets._locations import OfficialFiles, unpack_dataset
from caprompt.data.datasets._wordnet import read_class_names
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError

__all__ = ["TINY_IMAGENET", "load_tiny_imagenet"]

TINY_IMAGENET = OfficialFiles(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    folder="tiny-imagenet-200",
    archive="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    checksum="md5:90528d7ca1a48142e341f4ef8d21d0de",
    also=("tinyimagenet200_64px",),
)


def load_tiny_imagenet(
    folder: Path | None = None, classes: int = 200, images: tuple[int, int] = (100_000, 10_000)
) -> tuple[Samples, Samples]:
    """Load training and test samples; class names are like "n01443537 goldfish".

    The number of images is checked only in the official layout.
    """
    folder = folder or unpack_dataset(TINY_IMAGENET)
    for part in ("train", "val"):
        if not (folder / part).is_dir() and not (part == "val" and (folder / "test").is_dir()):
            raise DataError(f"'{folder}' is damaged or incomplete: it has no folder '{part}'; download it again")
    train = read_source(folder / "train")
    annotations = folder / "val" / "val_annotations.txt"
    if annotations.is_file():
        check_count(folder / "train", "training images", len(train), images[0])
        test = _read_annotations(annotations)
        check_count(annotations, "test images", len(test), images[1])
    else:
        test = read_source(next(folder / part for part in ("test", "val") if (folder / part).is_dir()))
    check_count(folder / "train", "classes", len(train.classes), classes)
    check_classes(folder, train, test, train.classes)
    check_classes(folder, train, test, test.classes)
    names = read_class_names(train.classes, folder / "words.txt")
    return _rename_classes(train, names), _rename_classes(test, names)


def _read_annotations(table: Path) -> Samples:
    """Read the validation images, all in one folder, from a table of file, class and box."""
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for number, row in enumerate(rows, start=1):
        if len(row) < 2 or "/" in row[0]:
            raise DataError(f"line {number} of '{table}' is damaged; download it again")
    files = tuple(table.parent / "images" / row[0] for row in rows)
    check_files_exist(table.parent, table, files)
    return Samples(files, tuple(row[1] for row in rows))


def _rename_classes(samples: Samples, names: dict[str, str]) -> Samples:
    return replace(samples, labels=tuple(names[label] for label in samples.labels))
