"""Sources of labeled images: a folder per class, a CSV file, an export of a labeling tool, arrays in memory, or a dataset.

Nothing here opens an image: `read_source` lists images and labels, and `validation.validate_images`
decodes them.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from caprompt.data.annotations import is_annotation_table, read_annotations
from caprompt.data.class_names import check_class_name
from caprompt.data.dataset_adapters import read_dataset, read_dataset_images
from caprompt.data.formats import FORMAT_LIST
from caprompt.data.image_folders import describe_ignored, find_images, read_class_folders
from caprompt.data.image_inputs import convert_image, is_one_image
from caprompt.data.images import SKIP_HINT, ImageInput
from caprompt.data.labels import Names, convert_labels, rename_numbers
from caprompt.data.samples import Samples
from caprompt.errors import CapromptWarning, DataError, InputError
from caprompt.utils.paths import expand_user

__all__ = ["Source", "collect_images", "explain_without_skipping", "list_images", "read_images", "read_source"]

Source: TypeAlias = str | Path | Samples | tuple[Iterable[Any], Iterable[Any]] | Any  # or a dataset of another library


def read_source(source: Source, names: Names | None = None) -> Samples:
    """List the labeled images of a source.

    It is a folder of class folders, a CSV file (path,label), an export of FiftyOne or Label Studio (`annotations`), a tuple
    (images, labels), a dataset of another library or an iterable of (image, label) (`dataset_adapters`). `names` are the names
    of classes whose labels are numbers.
    """
    if isinstance(source, Samples):
        samples = source
    elif isinstance(source, (str, Path)):
        samples = _read_path(expand_user(source))
    elif isinstance(source, tuple) and len(source) == 2:
        samples = _read_arrays(source[0], source[1], names)
    else:
        samples = read_dataset(source, names)
    if not len(samples):
        raise DataError("there are no images to read; give at least one")
    if names is not None and samples.integers is None:
        return replace(samples, labels=rename_numbers(samples.labels, names))
    return samples


def read_images(images: Any) -> tuple[ImageInput, ...]:
    """Return the images that a caller of `predict` passed.

    They are one image, the path of a folder, a dataset, or an iterable of images.
    """
    if isinstance(images, (str, Path)):
        return tuple(list_images([expand_user(images)]))
    if isinstance(images, Samples):
        return images.images
    if is_one_image(images):
        return (convert_image(images, "the image"),)
    return read_dataset_images(images)


@contextmanager
def explain_without_skipping() -> Iterator[None]:
    """Where nothing is skipped, let errors about unreadable images not advise to skip them.

    >>> with explain_without_skipping():
    ...     raise DataError(f"'a.png' is not a readable image{SKIP_HINT}")
    Traceback (most recent call last):
    caprompt.errors.DataError: 'a.png' is not a readable image; leave it out
    """
    try:
        yield
    except DataError as error:
        raise DataError(str(error).replace(SKIP_HINT, "; leave it out")) from error


def list_images(paths: Sequence[Path]) -> list[Path]:
    """List image files: the paths that are files, and the images in folders at any depth; warn about other files in these."""
    images, ignored = collect_images(paths)
    for message in describe_ignored(ignored):
        warnings.warn(message, CapromptWarning, stacklevel=2)
    return images


def collect_images(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the image files like `list_images`, and the files in folders that are not images."""
    if not paths:
        raise InputError("no image was given; name image files or folders of images")
    images: list[Path] = []
    ignored: list[Path] = []
    for path in map(expand_user, paths):
        if path.is_dir():
            found = find_images(path)
            if not found.images:
                raise DataError(f"there is no image in the folder '{path}'; name one that has images ({FORMAT_LIST})")
            images.extend(sorted(found.images))
            ignored.extend(found.ignored)
        else:
            images.append(path)
    return images, ignored


def _read_path(path: Path) -> Samples:
    if not path.exists():
        raise DataError(f"there is no folder or CSV file '{path}'; check the spelling and the current directory")
    suffix = path.suffix.lower()
    if not path.is_dir() and (suffix not in (".csv", ".json") or not path.is_file()):
        raise DataError(f"'{path}' is neither a folder nor a .csv or .json file; give one of these")
    try:
        if path.is_dir():
            return read_class_folders(path)
        return read_annotations(path) if suffix == ".json" or is_annotation_table(path) else _read_csv(path)
    except OSError as error:
        raise DataError(f"'{error.filename}' cannot be read ({error.strerror}); check its permissions") from error


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


def _read_arrays(images: Iterable[Any], labels: Iterable[Any], names: Names | None) -> Samples:
    if isinstance(images, (str, bytes)) or not hasattr(images, "__iter__"):
        raise DataError(f"the images are a single {type(images).__name__}; give a sequence of them, and one of their labels")
    inputs = tuple(convert_image(image, f"image {index}") for index, image in enumerate(images))
    class_names, integers = convert_labels(labels, names)
    return Samples(inputs, class_names, integers=integers)
