"""CIFAR-100 (Krizhevsky, 2009): 60,000 images of 32 x 32 pixels in 100 classes.

Read from the official Python files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caprompt.data.datasets._array_pickle import read_array_pickle
from caprompt.data.datasets._integrity import check_classes, check_count
from caprompt.data.datasets._locations import OfficialFiles, unpack_dataset
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["CIFAR100", "load_cifar100"]

CIFAR100 = OfficialFiles(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
)


def load_cifar100(
    folder: Path | None = None, classes: int = 100, images: tuple[int, int] = (50_000, 10_000)
) -> tuple[Samples, Samples]:
    """Load training and test samples with their fine labels, in the files' order.

    Counts other than `classes` and `images` raise `DataError`.
    """
    folder = folder or unpack_dataset(CIFAR100)
    names = [_to_text(name) for name in _get_field(_read_content(folder / "meta"), folder / "meta", "fine_label_names", list)]
    check_count(folder / "meta", "class names", len(set(names)), classes)
    train, test = (_load_part(folder / part, names, count) for part, count in zip(("train", "test"), images, strict=True))
    check_classes(folder, train, test, names)
    return train, test


def _load_part(file: Path, names: list[str], count: int) -> Samples:
    content = _read_content(file)
    pixels: NDArray[Any] = _get_field(content, file, "data", np.ndarray)
    labels: list[Any] = _get_field(content, file, "fine_labels", list)
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072 or len(labels) != len(pixels):
        raise DataError(
            f"'{file}' is damaged: {len(labels):,} labels and an array of {pixels.dtype} {pixels.shape}; download it again"
        )
    check_count(file, "images", len(pixels), count)
    invalid = [label for label in labels if not isinstance(label, int) or not 0 <= label < len(names)]
    if invalid:
        raise DataError(
            f"'{file}' is damaged: {len(invalid):,} of its labels are not in 0..{len(names) - 1}, first {invalid[0]!r}; "
            "download it again"
        )
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))  # (N, 32, 32, 3)
    return Samples(tuple(images), tuple(names[label] for label in labels))


def _read_content(file: Path) -> dict[Any, Any]:
    if not file.is_file():
        raise DataError(f"'{file.parent}' is damaged or incomplete: it has no file '{file.name}'; download it again")
    content = read_array_pickle(file)
    return content if isinstance(content, dict) else {}


def _get_field(content: dict[Any, Any], file: Path, key: str, kind: type) -> Any:
    """Return one entry; keys are bytes in the official files, and may be text in copies."""
    value = content.get(key.encode(), content.get(key))
    if not isinstance(value, kind):
        raise DataError(f"'{file}' is damaged: it has no '{key}'; download it again")
    return value


def _to_text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
