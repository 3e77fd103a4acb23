"""`undo`, `rename`, `join`, `forget`, `calibrate`, `info` and `classes`, as a person types them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from helpers import Command, caprompt_in_process, write_squares

QUICK = ("--set", "epochs=1", "--set", "projections=50", "--set", "length=4")


@pytest.fixture
def caprompt(tmp_path: Path) -> Command:
    """Return a function that runs a command in a folder of its own."""
    return partial(caprompt_in_process, cwd=tmp_path)


@pytest.fixture
def pets(caprompt: Command, backbone: Path, tmp_path: Path) -> Path:
    """A model 'pets' of two lessons, in the current directory of the commands."""
    write_squares(tmp_path / "week1", ["red", "green"])
    write_squares(tmp_path / "week2", ["blue"])
    assert caprompt("learn", "pets", "week1", "--backbone", backbone, *QUICK).returncode == 0
    assert caprompt("learn", "pets", "week2").returncode == 0
    return tmp_path / "pets"


def read_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_undo(caprompt: Command, pets: Path, tmp_path: Path) -> None:
    before = read_tree(pets)
    write_squares(tmp_path / "week3", ["red", "cyan"], start=30)
    assert caprompt("learn", "pets", "week3").returncode == 0
    result = caprompt("undo", "pets")
    assert "learned 10 images of 1 new and 1 known classes" in result.stdout
    assert "'pets' is as it was before" in result.stdout
    assert read_tree(pets) == before
    for _ in range(2):
        result = caprompt("undo", "pets")
    assert "has no lesson left and was removed" in result.stdout
    result = caprompt("undo", "pets")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


def test_rename_join_and_predict(caprompt: Command, pets: Path, tmp_path: Path) -> None:
    assert "Renamed 'red' to 'crimson'" in caprompt("rename", "pets", "red", "crimson").stdout
    assert "now knows 2 classes" in caprompt("join", "pets", "crimson", "blue", "--as", "any").stdout
    write_squares(tmp_path / "new", ["blue"], each=1, start=80)
    [prediction] = json.loads(caprompt("predict", "pets", "new", "--json").stdout)
    assert prediction["label"] == "any"
    for words, message in (
        (("rename", "pets", "gren", "x"), "did you mean 'green'"),
        (("rename", "pets", "green", "any"), "there is a class 'any' already"),
        (("join", "pets", "green", "--as", "x"), "two different classes"),
        (("rename", "nothing", "green", "x"), "does not hold a caprompt model"),
    ):
        result = caprompt(*words)
        assert result.returncode == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_forget_is_refused_unless_it_is_exact_or_approximate(caprompt: Command, pets: Path) -> None:
    result = caprompt("forget", "pets", "red")
    assert result.returncode == 2
    assert "cannot be forgotten exactly" in result.stderr
    assert "--approximate" in result.stderr
    assert "now knows 2 classes" in caprompt("forget", "pets", "red", "--approximate").stdout
    assert b"red" not in b"".join(read_tree(pets).values())


def test_info_and_classes(caprompt: Command, pets: Path, tmp_path: Path) -> None:
    write_squares(tmp_path / "test", ["red", "green", "blue"], each=2, start=60)
    assert caprompt("evaluate", "pets", "test").returncode == 0
    caprompt("rename", "pets", "red", "crimson")
    caprompt("evaluate", "pets", "test")
    text = caprompt("info", "pets").stdout
    for part in ("3 classes from 15 images", "method caprompt", "learned 10 images of 2 new classes", "renamed 'red' to 'crimson'"):
        assert part in text
    for part in ("last evaluation", "4 images", "state.safetensors", "earlier versions", "hash of every image file"):
        assert part in text
    info = json.loads(caprompt("info", "pets", "--json").stdout)
    assert [each["name"] for each in info["classes"]] == ["green", "crimson", "blue"]
    assert info["files"]["state.safetensors"] == (pets / "state.safetensors").stat().st_size
    assert info["evaluation"]["images"] == 4
    assert info["versions"] == 2
    assert "crimson" in caprompt("classes", "pets").stdout
    listed = json.loads(caprompt("classes", "pets", "--json").stdout)
    assert listed[0] == {"name": "green", "images": 5, "tasks": [1]}
    assert caprompt("info", "nothing").returncode == 2


def test_calibrate_and_coverage(caprompt: Command, pets: Path, tmp_path: Path) -> None:
    write_squares(tmp_path / "held-out", ["red", "green", "blue"], each=4, start=60)
    result = caprompt("calibrate", "pets", "held-out")
    assert "Calibrated 'pets' on 12 images" in result.stdout
    predictions = json.loads(caprompt("predict", "pets", "held-out", "--coverage", "0.9", "--json").stdout)
    assert all(each["prediction_set"] for each in predictions)
    assert all(each["prediction_set"][0] == each["label"] for each in predictions)
    result = caprompt("predict", "pets", "held-out", "--coverage", "2")
    assert (result.returncode, "coverage must be between 0 and 1" in result.stderr) == (2, True)


def test_restart_without_a_stopped_call_is_refused(caprompt: Command, pets: Path) -> None:
    result = caprompt("learn", "pets", "week2", "--restart")
    assert result.returncode == 2
    assert "nothing was stopped" in result.stderr
    result = caprompt("learn", "pets", "week2")
    assert "all 5 images were learned before; learn them once more with --again" in result.stderr
