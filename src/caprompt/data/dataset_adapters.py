"""Labeled images from the dataset objects of other libraries, recognized by their attributes.

    datasets.Dataset (Hugging Face)   `features`: an image column and a column of class labels
    torchvision ImageFolder           `samples`: files and numbers; `classes`: their names
    torch.utils.data.Subset           `dataset` and `indices`
    Avalanche experience              `dataset`, and no items of its own
    map-style dataset, iterable       items (image, label), or {"image": ..., "label": ...}

The first two are read when an image is needed; of the others, each item is read once and held in
memory. None of these libraries is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.formats import is_image_name
from caprompt.data.image_inputs import convert_image
from caprompt.data.images import ImageInput
from caprompt.data.labels import Names, convert_labels
from caprompt.data.samples import Samples
from caprompt.errors import DataError, first_line

__all__ = ["read_dataset", "read_dataset_images"]

SOURCES = "a folder, a CSV or JSON file, (images, labels), a dataset, or an iterable of (image, label)"
IMAGE_KEYS = ("image", "img", "pixel_values", "x")
LABEL_KEYS = ("label", "labels", "class", "target", "y")


def read_dataset(source: Any, names: Names | None = None) -> Samples:
    """Return the labeled images of a dataset or an iterable; `names` are those of labels that are numbers."""
    source = _unwrap(source)
    if _is_hugging_face(source):
        return _read_hugging_face(source, names)
    names = _find_class_names(source) if names is None else names
    files = _list_files(source)
    if files is not None:
        return _make_samples([path for path, _ in files], [label for _, label in files], names)
    keys = _find_keys(source)
    images: list[ImageInput] = []
    labels: list[Any] = []
    for index, item in enumerate(_iterate(source)):
        image, label = _split_item(item, index, keys)
        images.append(convert_image(image, f"image {index}"))
        labels.append(label)
    return _make_samples(images, labels, names)


def read_dataset_images(source: Any) -> tuple[ImageInput, ...]:
    """Return the images of a dataset or an iterable, whether it has labels or not."""
    source = _unwrap(source)
    if _is_hugging_face(source):
        return tuple(_list_stored_images(source, _find_columns(source.features)[0]))
    files = _list_files(source)
    if files is not None:
        return tuple(path for path, _ in files)
    keys, _ = _find_keys(source)
    return tuple(convert_image(_get_image(item, keys), f"image {index}") for index, item in enumerate(_iterate(source)))


def _find_class_names(source: Any) -> Names | None:
    """Return the class names that a dataset has in `classes` or `features`, itself or the dataset that it is a part of.

    >>> class Digits:
    ...     classes = ["zero", "one"]
    >>> _find_class_names(Digits()), _find_class_names([])
    (['zero', 'one'], None)
    """
    while source is not None:
        names = getattr(source, "classes", None)
        if isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names):
            return list(names)
        if isinstance(getattr(source, "features", None), Mapping):
            return getattr(source.features.get(_find_columns(source.features)[1]), "names", None)
        source = getattr(source, "dataset", None)
    return None


def _find_columns(features: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the names of the image column and of the label column, if there is one, from the types of the columns.

    Of several columns of class labels, the one with the most classes is taken; without one, a column of a usual name.
    """
    images = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    if not images:
        raise DataError(f"the dataset has no column of images, but {', '.join(features)}; cast one to datasets.Image()")
    labels = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    if labels:
        return images[0], max(labels, key=lambda name: len(features[name].names))
    return images[0], next((name for name in LABEL_KEYS if name in features), None)


# -- Hugging Face ----------------------------------------------------------------------------------------------------------


def _is_hugging_face(source: Any) -> bool:
    return isinstance(getattr(source, "features", None), Mapping) and hasattr(source, "cast_column") and hasattr(source, "__len__")


def _read_hugging_face(rows: Any, names: Names | None) -> Samples:
    image_column, label_column = _find_columns(rows.features)
    if label_column is None:
        raise DataError(f"the dataset has no column of labels, but {', '.join(rows.features)}; cast one to datasets.ClassLabel")
    labels = list(rows.with_format(None)[label_column])
    labeled = [index for index, label in enumerate(labels) if label is not None and label != -1]  # -1: hidden, in test splits
    names = _find_class_names(rows) if names is None else names
    images = _list_stored_images(rows, image_column)
    missing = len(labels) - len(labeled)
    skipped = (f"{missing} image{'s have' if missing > 1 else ' has'} no label, skipped",) if missing else ()
    return _make_samples([images[index] for index in labeled], [labels[index] for index in labeled], names, skipped)


def _list_stored_images(rows: Any, column: str) -> list[ImageInput]:
    """Return the images of a column, each as its file or as bytes that are read when they are needed."""
    stored = rows.with_format(None).select_columns([column])
    stored = stored.cast_column(column, type(rows.features[column])(decode=False))

    if len(stored) and (stored[0][column] or {}).get("path") and stored[0][column]["bytes"] is None:  # files on this machine
        return [convert_image(row[column] or {"path": None}, f"image {index}") for index, row in enumerate(stored)]

    def read(index: int) -> bytes:
        row = stored[index][column] or {}
        content: bytes | None = row.get("bytes")
        return content or (Path(row["path"]).read_bytes() if content is None and row.get("path") else b"")

    return [EncodedImage(partial(read, index)) for index in range(len(stored))]


# -- datasets of torch, and iterables --------------------------------------------------------------------------------------


def _unwrap(source: Any) -> Any:
    """Return the dataset of an Avalanche experience, and anything else as it is; raise for what holds no labeled images."""
    if isinstance(source, Mapping):
        splits = [name for name, part in source.items() if hasattr(part, "features")]
        if splits:
            raise DataError(f"the dataset has the splits {', '.join(splits)}; give one of them, such as dataset['{splits[0]}']")
    elif hasattr(source, "dataset") and hasattr(source, "batch_size"):
        raise DataError(f"a {type(source).__name__} yields batches; give its dataset, loader.dataset")
    elif hasattr(source, "dataset") and not hasattr(source, "__getitem__"):
        return source.dataset
    if isinstance(source, (str, bytes, Mapping)) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
        raise DataError(f"cannot read images from a {type(source).__name__}; give {SOURCES}")
    return source


def _list_files(source: Any) -> list[tuple[Path, int]] | None:
    """Return the files and labels of an ImageFolder or a part of one; None for other datasets."""
    if hasattr(source, "indices") and hasattr(source, "dataset"):
        files = _list_files(source.dataset)
        return None if files is None else [files[int(index)] for index in source.indices]
    entries = getattr(source, "samples", None)
    if not isinstance(entries, Sequence) or not hasattr(source, "classes"):
        return None
    files = [(Path(entry[0]), entry[1]) for entry in entries if isinstance(entry[0], (str, Path))]
    is_complete = len(files) == len(entries) and all(is_image_name(path.name) for path, _ in files)
    return files if files and is_complete else None


def _iterate(source: Any) -> Iterator[Any]:
    """Yield every item of an iterable or a map-style dataset."""
    # `iter` would not find the end of every map-style dataset.
    items = iter(source) if hasattr(source, "__iter__") else (source[index] for index in range(len(source)))
    for index in count():
        try:
            item = next(items)
        except StopIteration:
            return
        except Exception as error:  # of the dataset's own code
            raise DataError(f"item {index} of the dataset cannot be read ({first_line(error)}); repair or remove it") from error
        yield item


def _find_keys(source: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Return the keys under which items that are dictionaries may have their image and their label."""
    if isinstance(getattr(source, "features", None), Mapping):
        image, label = _find_columns(source.features)
        return [image], [] if label is None else [label]
    return IMAGE_KEYS, LABEL_KEYS


def _split_item(item: Any, index: int, keys: tuple[Sequence[str], Sequence[str]]) -> tuple[Any, Any]:
    """Return the image and the label of an item; a tuple may have more parts, such as the task in Avalanche."""
    if (isinstance(item, tuple) and len(item) >= 2) or (isinstance(item, list) and len(item) == 2):
        if getattr(item[0], "ndim", 0) == 4:
            raise DataError(f"item {index} is a batch of images; give a dataset or an iterable of single pairs (image, label)")
        return item[0], item[1]
    if isinstance(item, Mapping):
        image, label = (next((key for key in known if key in item), None) for known in keys)
        if image is not None and label is not None:
            return item[image], item[label]
        raise DataError(f"item {index} has the keys {', '.join(map(str, item))}; it needs 'image' and 'label'")
    raise DataError(f"item {index} is a {type(item).__name__}; every item must be a pair (image, label)")


def _get_image(item: Any, keys: Sequence[str]) -> Any:
    """Return the image of an item with or without a label."""
    if isinstance(item, tuple) and item:
        return item[0]
    if isinstance(item, Mapping):
        return next((item[key] for key in keys if key in item), item)
    return item


def _make_samples(images: Sequence[ImageInput], labels: Sequence[Any], names: Names | None, skipped: Sequence[str] = ()) -> Samples:
    class_names, integers = convert_labels(labels, names)
    return Samples(tuple(images), class_names, tuple(skipped), integers=integers)
