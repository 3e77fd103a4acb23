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
