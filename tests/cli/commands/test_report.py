"""The command `report`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import QUICK, assert_refused, write_squares
from helpers import caprompt_in_process as caprompt

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A folder with a model `pets` of two calls and test images, of which some are of a class that it does not know."""
    folder = tmp_path_factory.mktemp("taught")
    write_squares(folder / "week1", ["red", "green"])
    write_squares(folder / "week2", ["blue"])
    write_squares(folder / "test", ["red", "green", "blue", "white"], each=3, start=50)
    (folder / "test" / "green" / "wrong.png").write_bytes((folder / "test" / "red" / "050.png").read_bytes())
    (folder / "test" / "red" / "050.png").unlink()
    for words in (["week1", "--backbone", backbone, "--method", "ncm"], ["week2"]):
        done = caprompt("learn", "pets", *words, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A folder with a dataset and two runs on it, one of which leaks."""
    folder = tmp_path_factory.mktemp("report")
    write_squares(folder / "data", ["red", "green", "blue"])
    for name, protocol in (("fair", "honest"), ("leak", "released")):
        options = {**QUICK, "protocol": protocol, "classifier": "aligned"}
        run_experiment(RunConfig(dataset=str(folder / "data"), backbone=str(backbone), tasks=2, options=options), folder / name)
    return folder


def test_report_is_written_to_the_given_path(folder: Path) -> None:
    done = caprompt("report", "fair", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "written to report.html"
    assert "caprompt on" in (folder / "report.html").read_text(encoding="utf-8")
    assert caprompt("report", "leak", "--out", "pages/leak.html", "--no-pictures", cwd=folder).returncode == 0
    assert "<img" not in (folder / "pages" / "leak.html").read_text(encoding="utf-8")


def test_invalid_input_is_one_sentence_and_writes_nothing(folder: Path) -> None:
    def refuse(message: str, *arguments: object) -> None:
        assert_refused(folder, ["report", *arguments, "--out", "bad.html"], message, caprompt)

    refuse("there is no run to report on")
    refuse("there is no folder 'nowhere'", "nowhere")
    refuse("'data' does not hold a run", "data")
    refuse("results of different protocols (honest, released)", "fair", "leak")
    shutil.copytree(folder / "fair", folder / "half")
    results = json.loads((folder / "half" / "results.json").read_text())
    (folder / "half" / "results.json").write_text(json.dumps({**results, "rows": results["rows"][:1]}))
    refuse("the run in 'half' is not finished (1 of 2 tests done)", "half")
    plan = json.loads((folder / "half" / "run.json").read_text())
    (folder / "half" / "run.json").write_text(json.dumps({**plan, "format": 2}))
    refuse("was written by a newer caprompt (format 2", "half")
    assert_refused(folder, ["report", "fair", "--out", "data"], "'data' is a folder", caprompt)


def test_report_of_a_model(taught: Path) -> None:
    done = caprompt("report", "pets", "test", "--out", "pages/pets.html", cwd=taught)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "written to pages/pets.html"
    assert done.stderr.strip() == "skipped: class 'white' (3 images) has not been learned; left out"
    text = (taught / "pages" / "pets.html").read_text(encoding="utf-8")
    assert "<h1>pets: ncm</h1>" in text
    assert "9 test images" in text
    assert 'alt="test image wrong.png, of class green"' in text
    assert caprompt("report", "pets", "test", "--no-pictures", cwd=taught).returncode == 0
    assert "<img" not in (taught / "report.html").read_text(encoding="utf-8")


def test_model_is_named_after_its_folder(taught: Path) -> None:
    assert caprompt("report", ".", "../test", "--out", "../here.html", cwd=taught / "pets").returncode == 0
    assert "<h1>pets: ncm</h1>" in (taught / "here.html").read_text(encoding="utf-8")


def test_invalid_input_of_a_model(taught: Path) -> None:
    def refuse(message: str, *arguments: object) -> None:
        assert_refused(taught, ["report", *arguments, "--out", "bad.html"], message, caprompt)

    refuse("'pets' is a model; give it and the folder of its test images", "pets")
    refuse("'pets' is a model; give it and the folder of its test images", "pets", "test", "week1")
    refuse("there is no folder or CSV file 'nowhere'", "pets", "nowhere")
    refuse("'test' does not hold a run", "test", "pets")
    write_squares(taught / "unknown", ["white"])
    refuse("class 'white' has not been learned", "pets", "unknown")
    assert_refused(taught, ["report", "pets", "test", "--out", "week1"], "'week1' is a folder", caprompt)


def test_model_of_a_run(folder: Path) -> None:
    """The model in a run folder is a model like any other; the run folder itself is a run."""
    assert caprompt("report", "fair/model", "data", "--out", "model.html", cwd=folder).returncode == 0
    assert "<h1>model: caprompt</h1>" in (folder / "model.html").read_text(encoding="utf-8")
