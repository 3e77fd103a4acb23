"""Sources of labeled images: a folder per class, a CSV file, or arrays in memory.

Nothing here opens an image: `read_source` lists images and labels, and `validation.validate_images`
decodes them.
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
from caprompt.errors import DataError, InputError

__all__ = ["Source", "list_images", "read_images", "read_source"]

_SUFFIX_LIST = ", ".join(sorted(IMAGE_SUFFIXES))

Source: TypeAlias = str | Path | Samples | tuple[Sequence[Any], Sequence[Any]]


def read_source(source: Source) -> Samples:
    """List the labeled images of a source.

    It is a folder of class folders, a CSV file (path,label), or a tuple (images, labels).
    """
    if isinstance(source, Samples):
        samples = source
    elif isinstance(source, (str, Path)):
        samples = _read_path(Path(source).expanduser())
    elif isinstance(source, tuple) and len(source) == 2:
        samples = _read_arrays(*source)
    else:
        raise DataError(f"cannot read images from a {type(source).__name__}; give a folder, a CSV file or (images, labels)")
    if not len(samples):
        raise DataError("there are no images to read; give at least one")
    return samples


def read_images(images: str | Path | Sequence[ImageInput | str]) -> tuple[ImageInput, ...]:
    """Return the images that a caller of `predict` passed: a sequence of them, or the path of a file or of a folder."""
    if isinstance(images, (str, Path)):
        return tuple(list_images([Path(images)]))
    return tuple(Path(image) if isinstance(image, str) else image for image in images)


def list_images(paths: Sequence[Path]) -> list[Path]:
    """List image files: the paths that are files, and the images in folders at any depth."""
    if not paths:
        raise InputError("no image was given; name image files or folders of images")
    images: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
            if not inside:
                raise DataError(f"there is no image in the folder '{path}'; name one that has images ({_SUFFIX_LIST})")
            images.extend(inside)
        else:
            images.append(path)
    return images


def _read_path(path: Path) -> Samples:
    if not path.exists():
        raise DataError(f"there is no folder or CSV file '{path}'; check the spelling and the current directory")
    if not path.is_dir() and path.suffix.lower() != ".csv":
        raise DataError(f"'{path}' is neither a folder nor a .csv file; give one of the two")
    try:
        return _read_folder(path) if path.is_dir() else _read_csv(path)
    except OSError as error:
        raise DataError(f"'{error.filename}' cannot be read ({error.strerror}); check its permissions") from error


def _read_folder(root: Path) -> Samples:
    entries = sorted((e for e in root.iterdir() if not e.name.startswith(".")), key=lambda e: natural_key(e.name))
    folders = [entry for entry in entries if entry.is_dir()]
    num_loose = sum(entry.suffix.lower() in IMAGE_SUFFIXES for entry in entries if entry.is_file())
    if not folders:
        advice = "put its images into one folder per class" if num_loose else "make one folder of images per class in it"
        raise DataError(f"'{root}' has no class folders; {advice}")

    images: list[ImageInput] = []
    labels: list[str] = []
    for folder in folders:
        check_class_name(folder.name)
        files = sorted(_walk_images(folder), key=lambda file: natural_key(file.as_posix()))
        if not files:
            raise DataError(f"the class folder '{folder}' has no images ({_SUFFIX_LIST}); add some or remove the folder")
        images += files
        labels += [folder.name] * len(files)
    skipped = f"{num_loose} image(s) directly in '{root}' belong to no class and were skipped"
    return Samples(tuple(images), tuple(labels), (skipped,) if num_loose else ())


def _walk_images(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                yield Path(parent, name)


def _raise(error: OSError) -> None:
    raise error  # os.walk would silently skip a folder that it may not open


def _read_csv(table: Path) -> Samples:
    images: list[ImageInput] = []
    labels: list[str] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as lines:
            for path, label in _read_rows(csv.reader(lines, strict=True), table):
                images.append(table.parent / path)
                labels.append(label)
    except UnicodeDecodeError as error:
        raise DataError(f"'{table}' is not a UTF-8 text file; save it as CSV in UTF-8") from error
    if not images:
        raise DataError(f"'{table}' lists no images; give one path,label row for each image")
    return Samples(tuple(images), tuple(labels))


def _read_rows(reader: Any, table: Path) -> Iterator[tuple[str, str]]:
    """Yield path and label of every row; a header row with both names sets the columns."""
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


def _read_arrays(images: Sequence[Any], labels: Sequence[Any]) -> Samples:
    inputs = tuple(_convert_image(image, index) for index, image in enumerate(images))
    # tolist() converts the elements of an array or a tensor to Python scalars
    names = labels.tolist() if hasattr(labels, "tolist") else labels
    return Samples(inputs, tuple(_convert_label(label, index) for index, label in enumerate(names)))


def _convert_image(image: Any, index: int) -> ImageInput:
    if isinstance(image, (str, Path)):
        return Path(image).expanduser()
    if isinstance(image, (Image.Image, np.ndarray)):
        return image
    raise DataError(f"image {index} is a {type(image).__name__}; give a path, a Pillow image or a numpy array")


def _convert_label(label: Any, index: int) -> str:
    if isinstance(label, (str, int, np.integer)):
        return str(label)
    raise DataError(f"label {index} is a {type(label).__name__}; labels must be strings or integers")
