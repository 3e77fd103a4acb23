"""The command `report`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import QUICK, assert_refused, write_squares
from helpers import caprompt_here as caprompt

from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, backbone: Path) -> Path:
    """A folder with a data set and two runs on it, one of which leaks."""
    folder = tmp_path_factory.mktemp("place")
    write_squares(folder / "data", ["red", "green", "blue"])
    for name, protocol in (("fair", "honest"), ("leak", "released")):
        options = {**QUICK, "protocol": protocol, "classifier": "aligned"}
        run_experiment(RunConfig(dataset=str(folder / "data"), backbone=str(backbone), tasks=2, options=options), folder / name)
    return folder


def test_a_report_is_written_where_it_is_wanted(place: Path) -> None:
    done = caprompt("report", "fair", cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "written to report.html"
    assert "caprompt on" in (place / "report.html").read_text(encoding="utf-8")
    assert caprompt("report", "leak", "--out", "pages/leak.html", "--no-pictures", cwd=place).returncode == 0
    assert "<img" not in (place / "pages" / "leak.html").read_text(encoding="utf-8")


def test_bad_input_is_one_sentence_and_leaves_nothing(place: Path) -> None:
    def refuse(sentence: str, *words: object) -> None:
        assert_refused(place, ["report", *words, "--out", "bad.html"], sentence, caprompt)

    refuse("there is no run to report on")
    refuse("there is no folder 'nowhere'", "nowhere")
    refuse("'data' does not hold a run", "data")
    refuse("figures of different protocols (honest, released)", "fair", "leak")
    shutil.copytree(place / "fair", place / "half")
    results = json.loads((place / "half" / "results.json").read_text())
    (place / "half" / "results.json").write_text(json.dumps({**results, "rows": results["rows"][:1]}))
    refuse("the run in 'half' is not finished (1 of 2 tests done)", "half")
    plan = json.loads((place / "half" / "run.json").read_text())
    (place / "half" / "run.json").write_text(json.dumps({**plan, "format": 2}))
    refuse("was written by a newer caprompt (format 2", "half")
    assert_refused(place, ["report", "fair", "--out", "data"], "'data' is a folder", caprompt)
