"""Reading labelled images: a folder per class, a CSV file, or arrays in memory.

`read` finds the pictures and opens none of them; `verified` (re-exported from `verify`) decodes each once.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from caprompt.data.class_names import check_class_name, natural_key
from caprompt.data.images import IMAGE_SUFFIXES, ImageInput
from caprompt.data.samples import Samples
from caprompt.data.validation import validate_images
from caprompt.errors import DataError, InputError

__all__ = ["Samples", "Source", "check_class_name", "list_images", "read_source", "validate_images"]

_KINDS = ", ".join(sorted(IMAGE_SUFFIXES))

Source: TypeAlias = str | Path | Samples | tuple[Sequence[Any], Sequence[Any]]


def read_source(source: Source) -> Samples:
    """The labelled pictures of a folder of class folders, of a CSV file (path,label), or of (images, labels)."""
    if isinstance(source, Samples):
        samples = source
    elif isinstance(source, (str, Path)):
        samples = _read_path(Path(source).expanduser())
    elif isinstance(source, tuple) and len(source) == 2:
        samples = _read_pair(*source)
    else:
        raise DataError(f"cannot read images from a {type(source).__name__}; give a folder, a CSV file or (images, labels)")
    if not len(samples):
        raise DataError("there are no images to read; give at least one")
    return samples


def _read_path(path: Path) -> Samples:
    if not path.exists():
        raise DataError(f"there is no folder or CSV file '{path}'; check the spelling and where you are")
    if not path.is_dir() and path.suffix.lower() != ".csv":
        raise DataError(f"'{path}' is neither a folder nor a .csv file; give one of the two")
    try:
        return _read_folder(path) if path.is_dir() else _read_csv(path)
    except OSError as error:
        raise DataError(f"'{error.filename}' cannot be read ({error.strerror}); check its permissions") from error


def _read_folder(root: Path) -> Samples:
    entries = sorted((e for e in root.iterdir() if not e.name.startswith(".")), key=lambda e: natural_key(e.name))
    folders = [entry for entry in entries if entry.is_dir()]
    loose = sum(entry.suffix.lower() in IMAGE_SUFFIXES for entry in entries if entry.is_file())
    if not folders:
        found = "its images must sit in one folder per class" if loose else "make one folder of images per class in it"
        raise DataError(f"'{root}' has no class folders; {found}")

    pictures: list[ImageInput] = []
    labels: list[str] = []
    for folder in folders:
        check_class_name(folder.name)
        files = sorted(_images_below(folder), key=lambda file: natural_key(file.as_posix()))
        if not files:
            raise DataError(f"the class folder '{folder}' has no images ({_KINDS}); put some in or remove it")
        pictures += files
        labels += [folder.name] * len(files)
    skipped = f"{loose} image(s) lying directly in '{root}' belong to no class and were left out"
    return Samples(tuple(pictures), tuple(labels), (skipped,) if loose else ())


def _images_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield Path(parent, name)


def _fail(error: OSError) -> None:
    raise error  # os.walk would pass over a folder it may not open, and its images would be missing unnoticed


def _read_csv(table: Path) -> Samples:
    pictures: list[ImageInput] = []
    labels: list[str] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as lines:
            for path, label in _rows(csv.reader(lines, strict=True), table):
                pictures.append(table.parent / path)
                labels.append(label)
    except UnicodeDecodeError as error:
        raise DataError(f"'{table}' is not a UTF-8 text file; save it as CSV in UTF-8") from error
    if not pictures:
        raise DataError(f"'{table}' lists no images; give one path,label row for each image")
    return Samples(tuple(pictures), tuple(labels))


def _rows(reader: Any, table: Path) -> Iterator[tuple[str, str]]:
    """Path and label of every row; a first row that names both columns says where they are."""
    width, columns = 2, (0, 1)
    try:
        for number, row in enumerate(filter(None, reader)):
            names = [name.strip().lower() for name in row]
            if number == 0 and "path" in names and "label" in names:
                width, columns = len(names), (names.index("path"), names.index("label"))
                continue
            if len(row) != width:
                raise DataError(f"it has {len(row)} column(s) where {width} were expected (path,label)")
            path, label = (row[column].strip() for column in columns)
            if not path:
                raise DataError("the path is empty")
            check_class_name(label)
            yield path, label
    except (csv.Error, DataError) as error:
        raise DataError(f"line {reader.line_num} of '{table}' cannot be used: {error}") from error


def _read_pair(images: Sequence[Any], labels: Sequence[Any]) -> Samples:
    pictures = tuple(_picture(image, number) for number, image in enumerate(images))
    # tolist() turns the numbers of an array or a tensor into Python's own
    names = labels.tolist() if hasattr(labels, "tolist") else labels
    return Samples(pictures, tuple(_label(label, number) for number, label in enumerate(names)))


def _picture(image: Any, number: int) -> ImageInput:
    if isinstance(image, (str, Path)):
        return Path(image).expanduser()
    if isinstance(image, (Image.Image, np.ndarray)):
        return image
    raise DataError(f"image {number} is a {type(image).__name__}; give a path, a Pillow image or a numpy array")


def _label(label: Any, number: int) -> str:
    if isinstance(label, (str, int, np.integer)):
        return str(label)
    raise DataError(f"label {number} is a {type(label).__name__}; labels are names or whole numbers")


def list_images(places: Sequence[Path]) -> list[Path]:
    """Image files, and those in folders at any depth."""
    if not places:
        raise InputError("no image was given; name files or folders of them")
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
            if not inside:
                raise DataError(f"there is no image in the folder '{place}'")
            found.extend(inside)
        else:
            found.append(place)
    return found
