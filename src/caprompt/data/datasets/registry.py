"""Registry of datasets by name, and loading of any folder or CSV file as a dataset.

To add a dataset, write a module like `digits` (or `cub200`, for one that is downloaded) with a
function that returns (train, test), and add an entry to DATASETS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from caprompt.data.datasets._download import Progress
from caprompt.data.datasets._integrity import check_classes
from caprompt.data.datasets._locations import OfficialFiles, fetch_dataset, find_dataset
from caprompt.data.datasets.beetles import load_beetles
from caprompt.data.datasets.cifar100 import CIFAR100, load_cifar100
from caprompt.data.datasets.cub200 import CUB200, load_cub200
from caprompt.data.datasets.digits import load_digits
from caprompt.data.datasets.hugging_face import PREFIX, load_hugging_face
from caprompt.data.datasets.imagenet_r import IMAGENET_R, load_imagenet_r
from caprompt.data.datasets.tiny_imagenet import TINY_IMAGENET, load_tiny_imagenet
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.tasks import hold_out
from caprompt.errors import DataError, UnknownNameError
from caprompt.utils.paths import expand_user

__all__ = ["DATASETS", "Dataset", "DatasetInfo", "download_dataset", "list_datasets", "load_dataset"]

FOLDER_TASKS = 5  # default number of tasks of a folder or CSV file


@dataclass(frozen=True)
class Dataset:
    """Training and test samples, with the default number of tasks and default training options."""

    name: str
    train: Samples
    test: Samples
    tasks: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset that is not loaded yet; `load` returns its training and test samples."""

    name: str
    description: str
    needs: str
    load: Callable[[], tuple[Samples, Samples]]
    tasks: int
    options: Mapping[str, Any] = field(default_factory=dict)
    official: OfficialFiles | None = None  # None for a dataset that is installed or drawn

    def describe_location(self) -> str:
        """Return the path of the dataset, or what is needed to get it."""
        if self.official is None:
            return "included"
        path = find_dataset(self.official)
        return str(path) if path else f"not found; needs {self.needs}"


DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            name="beetles",
            description="600 drawn beetles of 72 x 72 pixels in 12 classes",
            needs="nothing: the images are drawn when they are loaded",
            load=load_beetles,
            tasks=4,
            # A small crop loses the pattern that tells species apart. 360 images need no wide projection.
            options={"crop_scale": (0.6, 1.0), "projections": 1000},
        ),
        DatasetInfo(
            name="digits",
            description="1,797 handwritten digits of 8 x 8 pixels in 10 classes",
            needs="nothing: the images come with scikit-learn",
            load=load_digits,
            tasks=5,
            # A flipped or cut digit is another symbol. 1,400 images need no wide projection.
            options={"epochs": 2, "flip": 0.0, "crop_scale": (0.6, 1.0), "projections": 1000},
        ),
        DatasetInfo(
            name="cifar100",
            description="60,000 photos of 32 x 32 pixels in 100 classes",
            needs=CIFAR100.archive,
            load=load_cifar100,
            tasks=10,
            official=CIFAR100,
        ),
        DatasetInfo(
            name="imagenet-r",
            description="30,000 renditions (art, toys, ...) of 200 classes",
            needs=IMAGENET_R.archive,
            load=load_imagenet_r,
            tasks=10,
            options={"crop_scale": (0.05, 1.0)},
            official=IMAGENET_R,
        ),
        DatasetInfo(
            name="cub200",
            description="11,788 photos of 200 bird species",
            needs=CUB200.archive,
            load=load_cub200,
            tasks=10,
            options={"crop_scale": (0.05, 1.0)},
            official=CUB200,
        ),
        DatasetInfo(
            name="tiny-imagenet",
            description="110,000 photos of 64 x 64 pixels in 200 classes",
            needs=TINY_IMAGENET.archive,
            load=load_tiny_imagenet,
            tasks=10,
            options={"crop_scale": (0.05, 1.0)},
            official=TINY_IMAGENET,
        ),
    )
}


def list_datasets() -> dict[str, DatasetInfo]:
    """Return the known datasets by name."""
    return dict(DATASETS)


def load_dataset(name_or_path: str | Path, seed: int = 0, test_share: float = 0.2) -> Dataset:
    """Load a dataset by name or from a path.

    A path is a folder with train/ and test/ (or val/), a folder of class folders, or a CSV file.
    "hf:owner/name" is a dataset of the Hugging Face Hub. Of a folder of class folders or a CSV
    file, `test_share` of each class is held out by `seed` as test images. A name takes precedence
    over a folder of that name: write "./digits" or a `Path` for the folder.
    """
    if isinstance(name_or_path, str) and name_or_path in DATASETS:
        info = DATASETS[name_or_path]
        train, test = (replace(part, published=True) for part in info.load())
        return Dataset(info.name, train, test, info.tasks, info.options)
    if isinstance(name_or_path, str) and name_or_path.startswith(PREFIX):
        return _load_from_hub(name_or_path.removeprefix(PREFIX), seed, test_share)
    path = expand_user(name_or_path)
    if not path.exists() and path.name == name_or_path and not path.suffix:
        raise UnknownNameError("dataset", path.name, DATASETS)  # a bare word is meant as a name
    train, test = _read_splits(path) or _split(read_source(path), str(path), seed, test_share)
    name = path.stem if path.is_file() else path.resolve().name
    return Dataset(name, train, test, min(FOLDER_TASKS, len(train.classes)), {})


def download_dataset(name: str, on_progress: Progress | None = None) -> None:
    """Download and unpack a dataset unless it exists.

    `on_progress` is called with the received and the total bytes.
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    official = DATASETS[name].official
    if official is not None:
        fetch_dataset(official, on_progress)


def _read_splits(path: Path) -> tuple[Samples, Samples] | None:
    """Read a folder with train/ and test/ (or val/); return None for any other."""
    test_folder = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if test_folder is None or not (path / "train").is_dir():
        return None
    train, test = read_source(path / "train"), read_source(test_folder)
    unmatched = sorted(set(train.classes) ^ set(test.classes))
    if unmatched:
        raise DataError(f"class '{unmatched[0]}' is in only one of '{path / 'train'}' and '{test_folder}'; every class needs both")
    return train, test


def _load_from_hub(name: str, seed: int, test_share: float) -> Dataset:
    train, test = load_hugging_face(name)
    if test is None:
        train, test = _split(train, name, seed, test_share)
    check_classes(Path(name), train, test, sorted({*train.classes, *test.classes}))
    return Dataset(name.replace("/", "--"), train, test, min(FOLDER_TASKS, len(train.classes)), {})


def _split(samples: Samples, name: str, seed: int, test_share: float) -> tuple[Samples, Samples]:
    train, test = hold_out(samples, test_share, seed)
    untested = [label for label in samples.classes if label not in test.classes]
    if untested:
        raise DataError(f"class '{untested[0]}' of '{name}' has no image to spare for testing; give every class two or more")
    return replace(train, skipped=samples.skipped), test
