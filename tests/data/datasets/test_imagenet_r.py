from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from helpers import square
from PIL import Image

from caprompt.data.datasets.imagenet_r import load_imagenet_r
from caprompt.data.samples import Samples
from caprompt.errors import DataError

CLASSES = {"n01443537": "goldfish", "n01484850": "great_white_shark", "n02106662": "german_shepherd_dog"}
SIZES = dict(zip(CLASSES, (5, 10, 15), strict=True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes in the official layout: imagenet-r/<WordNet ID>/<style>_<n>.jpg and a README.txt."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    root = tmp_path / "imagenet-r"
    for name, size in SIZES.items():
        (root / name).mkdir(parents=True)
        for number in range(size):
            Image.fromarray(square("red", number, 8)).save(root / name / f"art_{number}.jpg")
    (root / "README.txt").write_text("ImageNet-R\n\n" + "".join(f"{key} {value}\n" for key, value in CLASSES.items()))
    return root


def load() -> tuple[Samples, Samples]:
    return load_imagenet_r(classes=3, images=30)


def get_files(samples: Samples, folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in samples.images if isinstance(path, Path)]


def test_split_by_rule_is_stratified_and_saved(folder: Path) -> None:
    train, test = load()
    assert test.counts() == {"n01443537 goldfish": 1, "n01484850 great white shark": 2, "n02106662 german shepherd dog": 3}
    assert (len(train), len(test)) == (24, 6)
    assert not set(train.images) & set(test.images)
    saved = folder.parent / "imagenet-r_seed0_test.txt"
    assert saved.read_text().splitlines() == get_files(test, folder)
    assert (folder.parent / "imagenet-r_seed0_train.txt").read_text().splitlines() == get_files(train, folder)
    again = load()
    assert (again[0].images, again[1].images) == (train.images, test.images)


def test_archive_is_unpacked(folder: Path) -> None:
    with tarfile.open(folder.parent / "imagenet-r.tar", "w") as tar:
        tar.add(folder, "imagenet-r")
    shutil.rmtree(folder)
    assert (len(load()[0]), folder.is_dir()) == (24, True)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_truncated_archive_raises(folder: Path, share: float) -> None:
    archive = folder.parent / "imagenet-r.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "imagenet-r")
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="damaged or incomplete"):
        load()


def test_lists_define_the_split(folder: Path) -> None:
    all_files = [f"{name}/art_{number}.jpg" for name, size in SIZES.items() for number in range(size)]
    test = [file for file in all_files if file.endswith("_0.jpg")]
    (folder.parent / "imagenet-r_train.txt").write_text("".join(f"{file} 0\n" for file in all_files if file not in test))
    rows = "".join(f"- data/imagenet-r/{file}\n" for file in test)
    (folder.parent / "imagenet-r_test.yaml").write_text(f"data:\n{rows}targets:\n- 0\n- 1\n- 2\n")
    parts = load()
    assert (len(parts[0]), get_files(parts[1], folder)) == (27, test)
    assert parts[1].labels[0] == "n01443537 goldfish"


def test_invalid_lists_raise(folder: Path) -> None:
    load()
    lists = {part: folder.parent / f"imagenet-r_{part}.txt" for part in ("train", "test")}
    for part, path in lists.items():
        (folder.parent / f"imagenet-r_seed0_{part}.txt").rename(path)
    train, test = lists["train"].read_text(), lists["test"].read_text()
    lists["test"].write_text(test + "n01443537/gone_1.jpg\nn01443537/gone_2.jpg\n")
    with pytest.raises(
        DataError, match=r"imagenet-r_test.txt' lists images .*: found 6, expected 8, the first missing is 'n01443537/gone_1.jpg'"
    ):
        load()
    lists["test"].write_text(test + train.splitlines()[0])
    with pytest.raises(DataError, match=r"lists 1 image\(s\) that are also in the training list"):
        load()
    lists["test"].write_text("".join(line + "\n" for line in test.splitlines() if not line.startswith("n01443537")))
    with pytest.raises(DataError, match=r"class 'n01443537' has no test images \(found 2 classes, expected 3\)"):
        load()
    lists["test"].with_suffix(".yaml").touch()
    with pytest.raises(DataError, match=r"two lists of test images, '.*_test.txt' and '.*_test.yaml'; remove one"):
        load()
    lists["test"].with_suffix(".yaml").unlink()
    lists["test"].unlink()
    with pytest.raises(DataError, match="there is only one list of images, '.*imagenet-r_train.txt'"):
        load()


def test_missing_class_raises(folder: Path) -> None:
    shutil.rmtree(folder / "n01484850")
    with pytest.raises(DataError, match="imagenet-r' is damaged or incomplete: found 2 classes, expected 3"):
        load()


def test_missing_images_raise(folder: Path) -> None:
    (folder / "n01484850" / "art_3.jpg").unlink()
    with pytest.raises(DataError, match="imagenet-r' is damaged or incomplete: found 29 images, expected 30"):
        load()
    assert not list(folder.parent.glob("*.txt")), "no lists of an incomplete dataset"


def test_copy_with_splits_is_used_unchanged(folder: Path) -> None:
    for name in CLASSES:
        for part in ("train", "test"):
            (folder / part / name).mkdir(parents=True)
        for path in sorted((folder / name).iterdir()):
            path.rename(folder / ("test" if path.stem == "art_2" else "train") / name / path.name)
        (folder / name).rmdir()
    train, test = load()
    assert (len(train), test.counts()) == (27, dict.fromkeys(train.classes, 1))
    assert not list(folder.parent.glob("*.txt"))
    (folder / "train" / "n01443537" / "art_0.jpg").unlink()
    with pytest.raises(DataError, match="found 29 images, expected 30"):
        load()
    shutil.rmtree(folder / "test" / "n01443537")
    with pytest.raises(DataError, match="class 'n01443537' has no test images"):
        load()
