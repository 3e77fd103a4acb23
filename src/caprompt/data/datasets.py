"""Data sets by name, and any folder or CSV file as one.

To add a data set: write a file like `digits.py` with a function that returns (train, test), and add a line to DATASETS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caprompt.data.digits import load_digits
from caprompt.data.samples import Samples
from caprompt.data.sources import read
from caprompt.data.streams import hold_out
from caprompt.errors import DataError, UnknownNameError

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "load_dataset"]

FOLDER_TASKS = 5  # where nobody says how many


@dataclass(frozen=True)
class Dataset:
    """Training and test images, with the number of tasks and the training options that suit them by default."""

    name: str
    train: Samples
    test: Samples
    tasks: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is loaded; `load` returns its training and test images."""

    name: str
    description: str
    needs: str
    load: Callable[[], tuple[Samples, Samples]]
    tasks: int
    options: Mapping[str, Any] = field(default_factory=dict)


DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            name="digits",
            description="1,797 handwritten digits of 8 x 8 pixels in 10 classes",
            needs="nothing: the images come with scikit-learn",
            load=load_digits,
            tasks=5,
            options={"epochs": 3, "flip": 0.0, "crop_scale": (0.6, 1.0)},  # a mirrored or halved digit is another sign
        ),
    )
}


def load_dataset(name_or_path: str | Path, seed: int = 0, test_share: float = 0.2) -> Dataset:
    """A data set by name; a folder of train/ and test/ (or val/) folders; or a folder or CSV file to be split.

    Of a plain class folder or CSV file, `test_share` of each class is held out by `seed` as test images.
    A name goes before a folder of that name: write "./digits" or a `Path` for the folder.
    """
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        info = DATASETS[name_or_path]
        train, test = info.load()
        return Dataset(info.name, train, test, info.tasks, info.options)
    path = Path(name_or_path).expanduser()
    if not path.exists() and path.name == name_or_path and not path.suffix:
        raise UnknownNameError("data set", path.name, DATASETS)  # a bare word was meant as a name
    train, test = _divided(path) or _split(path, seed, test_share)
    name = path.stem if path.is_file() else path.resolve().name
    return Dataset(name, train, test, min(FOLDER_TASKS, len(train.classes)), {})


def _divided(path: Path) -> tuple[Samples, Samples] | None:
    """The two parts of a folder that is already divided, or None."""
    test_folder = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if test_folder is None or not (path / "train").is_dir():
        return None
    train, test = read(path / "train"), read(test_folder)
    unmatched = sorted(set(train.classes) ^ set(test.classes))
    if unmatched:
        raise DataError(f"class '{unmatched[0]}' is in only one of '{path / 'train'}' and '{test_folder}'; every class needs both")
    return train, test


def _split(path: Path, seed: int, test_share: float) -> tuple[Samples, Samples]:
    samples = read(path)
    train, test = hold_out(samples, test_share, seed)
    untested = [name for name in samples.classes if name not in test.classes]
    if untested:
        raise DataError(f"class '{untested[0]}' of '{path}' has no image to spare for the test; give every class two or more")
    return replace(train, skipped=samples.skipped), test
