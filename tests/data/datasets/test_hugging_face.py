from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import square
from PIL import Image

from caprompt.data import load_dataset
from caprompt.data.datasets.hugging_face import load_hugging_face
from caprompt.errors import DataError


class FakeImage:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class FakeLabel:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


class FakeRows(list[dict[str, Any]]):
    """The part of `datasets.Dataset` that is used."""

    features: dict[str, Any]

    def cast_column(self, column: str, kind: FakeImage) -> FakeRows:
        assert column == "img"
        assert not kind.decode
        return self


def make_rows(labels: list[int], *names: str) -> FakeRows:
    rows = FakeRows()
    for number, label in enumerate(labels):
        buffer = io.BytesIO()
        Image.fromarray(square("red", number, 8)).save(buffer, "png")
        rows.append({"img": {"bytes": buffer.getvalue(), "path": None}, "coarse": 0, "fine": label})
    rows.features = {"img": FakeImage(), "coarse": FakeLabel("all"), "fine": FakeLabel(*names)}
    return rows


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The splits that a fake `datasets` package returns."""
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    splits: dict[str, Any] = {}
    module = ModuleType("datasets")
    module.__dict__.update(Image=FakeImage, ClassLabel=FakeLabel, load_dataset=lambda name: splits)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return splits


def test_splits_are_written_once_as_folders(hub: dict[str, Any], tmp_path: Path) -> None:
    hub.update(train=make_rows([0, 1, 1, 0], "cat", "sea/lion?"), test=make_rows([1, 0], "cat", "sea/lion?"))
    data = load_dataset("hf:someone/pets")
    assert (data.name, len(data.train), len(data.test), data.tasks) == ("someone--pets", 4, 2, 2)
    assert data.train.classes == ("cat", "sea-lion-")
    assert data.train.images[0] == tmp_path / "data" / "hf" / "someone--pets" / "train" / "cat" / "0000000.png"
    hub.clear()
    assert len(load_dataset("hf:someone/pets").train) == 4, "from the disk"


def test_validation_split_replaces_hidden_test_labels(hub: dict[str, Any]) -> None:
    hub.update(train=make_rows([0, 1], "a", "b"), test=make_rows([-1, -1], "a", "b"), validation=make_rows([0, 1, 0], "a", "b"))
    train, test = load_hugging_face("x/y")
    assert test is not None
    assert (len(train), len(test)) == (2, 3)


def test_images_are_held_out_without_a_test_split(hub: dict[str, Any]) -> None:
    hub.update(train=make_rows([0, 1] * 5, "a", "b"))
    data = load_dataset("hf:pets")
    assert (len(data.train), data.test.counts()) == (8, {"a": 1, "b": 1})


def test_equal_folder_names_are_numbered(hub: dict[str, Any]) -> None:
    hub.update(train=make_rows([0, 1], "a/b", "a?b"), test=make_rows([0, 1], "a/b", "a?b"))
    assert load_hugging_face("x/y")[0].classes == ("0 a-b", "1 a-b")


def test_other_kinds_of_datasets_raise(hub: dict[str, Any], tmp_path: Path) -> None:
    hub.update(train=make_rows([0], "a"))
    hub["train"].features = {"text": "string", "fine": FakeLabel("a")}
    with pytest.raises(DataError, match=r"'hf:x/y' has no images in its columns \(text, fine\)"):
        load_hugging_face("x/y")
    hub["train"].features = {"img": FakeImage()}
    with pytest.raises(DataError, match=r"has no class labels in its columns \(img\)"):
        load_hugging_face("x/y")
    assert not list((tmp_path / "data" / "hf").iterdir())
    hub["other"] = hub.pop("train")
    with pytest.raises(DataError, match="has no split 'train', but other"):
        load_hugging_face("x/y")


def test_error_of_the_package_is_included(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub.\nmore")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", fail)
    with pytest.raises(
        DataError, match=r"'hf:x/y' cannot be loaded from the Hugging Face Hub: Dataset 'x/y' doesn't exist on the Hub.$"
    ):
        load_hugging_face("x/y")


def test_missing_package_names_the_extra(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"'hf:x/y' needs the package 'datasets'; install it with: pip install 'caprompt\[hub\]'"):
        load_dataset("hf:x/y")


@pytest.mark.parametrize("name", ["", "../x", "a/b/c", "a b", "x/.."])
def test_invalid_names_raise(name: str) -> None:
    with pytest.raises(DataError, match="write hf:owner/name"):
        load_hugging_face(name)
