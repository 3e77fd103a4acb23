from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from caprompt.data import list_datasets, load_dataset
from caprompt.data.datasets.registry import DATASETS, download_dataset
from caprompt.errors import DataError, UnknownNameError


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_registry_entries_are_complete(name: str) -> None:
    info = DATASETS[name]
    assert info.name == name
    assert info.description
    assert info.needs
    assert info.tasks > 1


def test_list_datasets_returns_a_copy() -> None:
    datasets = list_datasets()
    assert datasets == DATASETS
    datasets.clear()
    assert list_datasets() == DATASETS != {}


def test_load_digits_by_name() -> None:
    digits = load_dataset("digits")
    assert (digits.name, digits.tasks, len(digits.train.classes)) == ("digits", 5, 10)
    assert digits.options["flip"] == 0.0


BENCHMARKS = {
    "cifar100": "cifar-100-python",
    "imagenet-r": "imagenet-r",
    "cub200": "CUB_200_2011",
    "tiny-imagenet": "tiny-imagenet-200",
}


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_missing_benchmark_raises(data_folder: Path, name: str) -> None:
    official = DATASETS[name].official
    assert official is not None
    with pytest.raises(
        DataError, match=rf"was not found; .*--download {name}', or put '{official.archive}' from http.* into '{data_folder}'"
    ):
        load_dataset(name)
    assert DATASETS[name].describe_location() == f"not found; needs {official.archive}"


@pytest.mark.parametrize(("name", "folder"), BENCHMARKS.items())
def test_location_of_a_benchmark(data_folder: Path, name: str, folder: str) -> None:
    (data_folder / folder).mkdir(parents=True)
    assert DATASETS[name].describe_location() == str(data_folder / folder)
    with pytest.raises(DataError):  # an empty folder is no dataset
        load_dataset(name)
    download_dataset(name)  # it exists: nothing to download


def test_default_options_of_benchmarks() -> None:
    assert {DATASETS[name].tasks for name in BENCHMARKS} == {10}
    assert DATASETS["cifar100"].options == {}  # the usual crops give better accuracy than the paper's
    assert DATASETS["imagenet-r"].options == {"crop_scale": (0.05, 1.0)}
    assert DATASETS["cub200"].options == {"crop_scale": (0.05, 1.0)}  # six thousand images


def test_download_by_name() -> None:
    download_dataset("digits")  # comes with scikit-learn
    assert DATASETS["digits"].describe_location() == "included"
    with pytest.raises(UnknownNameError, match="did you mean 'cifar100'"):
        download_dataset("cifar10")


def test_unknown_name_raises_with_a_hint() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown dataset 'digit' .*did you mean 'digits'"):
        load_dataset("digit")
    with pytest.raises(DataError, match="there is no folder or CSV file"):
        load_dataset("no/such/folder")


def test_folder_is_split(photos: Path) -> None:
    (photos / "stray.png").write_bytes(b"")
    data = load_dataset(photos, test_share=0.25)
    assert (data.name, data.tasks, data.options) == ("photos", 3, {})
    assert data.train.counts() == {"class1": 3, "class2": 3, "class10": 3}
    assert data.test.counts() == {"class1": 1, "class2": 1, "class10": 1}
    assert not set(data.train.images) & set(data.test.images)
    assert len(data.train.skipped) == 1
    assert load_dataset(photos, seed=1, test_share=0.25).test.images != data.test.images


def test_csv_file_is_split(photos: Path) -> None:
    rows = "".join(f"class{label}/{number}.png,c{label}\n" for label in (1, 2) for number in range(4))
    (photos / "pets.csv").write_text(rows)
    data = load_dataset(str(photos / "pets.csv"), test_share=0.5)
    assert (data.name, data.train.counts(), data.test.counts()) == ("pets", {"c1": 2, "c2": 2}, {"c1": 2, "c2": 2})


@pytest.mark.parametrize("part", ["test", "val"])
def test_folder_with_splits_is_used_unchanged(photos: Path, tmp_path: Path, part: str) -> None:
    root = tmp_path / "split"
    shutil.copytree(photos, root / "train")
    for name in ("class1", "class2", "class10"):
        (root / part / name).mkdir(parents=True)
        shutil.move(root / "train" / name / "3.png", root / part / name / "3.png")
    data = load_dataset(root)
    assert (len(data.train), len(data.test), data.name) == (9, 3, "split")
    assert all(path.is_relative_to(root / part) for path in data.test.images)

    shutil.rmtree(root / "train" / "class2")
    with pytest.raises(DataError, match="class 'class2' is in only one of"):
        load_dataset(root)


def test_class_with_one_image_raises(photos: Path) -> None:
    for number in (1, 2, 3):
        (photos / "class2" / f"{number}.png").unlink()
    with pytest.raises(DataError, match=r"class 'class2' of .* has no image to spare"):
        load_dataset(photos)


def test_folder_named_as_a_dataset_needs_a_path(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos.rename(photos.parent / "digits")
    monkeypatch.chdir(photos.parent)
    assert len(load_dataset("digits").train.classes) == 10
    assert len(load_dataset("./digits").train.classes) == 3
    assert len(load_dataset(Path("digits")).train.classes) == 3


def test_package_does_not_import_torch() -> None:
    code = "import sys, caprompt.data; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
