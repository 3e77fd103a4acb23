from __future__ import annotations

from pathlib import Path

import pytest
from grids import write_fake_cell

from caprompt.errors import ModelFolderError
from caprompt.experiments.config import RunConfig
from caprompt.experiments.grid import Cell
from caprompt.experiments.run_folder import RunResult, read_plan


@pytest.fixture
def run_folder(tmp_path: Path, backbone: Path) -> Path:
    """Return the folder of a finished run."""
    cell = Cell(RunConfig(dataset="digits", backbone=str(backbone)))
    write_fake_cell(cell, tmp_path)
    return tmp_path / cell.name


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="does not hold a run"):
        RunResult.load(tmp_path)
    for text in ("[]", "{", '{"format": "new"}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ModelFolderError, match="does not hold a run"):
            read_plan(tmp_path)


def test_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 2}')
    with pytest.raises(ModelFolderError, match=r"written by a newer caprompt \(format 2"):
        read_plan(tmp_path)


def test_half_written_results_are_refused(run_folder: Path) -> None:
    path = run_folder / "results.json"
    text = path.read_text()
    assert RunResult.load(run_folder).finished
    for broken in (text[:30], "[]", '{"rows": [{"accuracy": 1}]}'):
        path.write_text(broken)
        with pytest.raises(ModelFolderError, match=r"results.json' is half-written or of another version .* remove the folder"):
            RunResult.load(run_folder)


def test_half_written_plan_and_plan_of_another_version_are_refused(run_folder: Path) -> None:
    path = run_folder / "run.json"
    path.write_text('{"config": ')
    with pytest.raises(ModelFolderError, match=r"run.json is half-written; remove the folder"):
        RunResult.load(run_folder)
    path.write_text('{"config": {}}')
    with pytest.raises(ModelFolderError, match="was written by another version of caprompt; remove the folder"):
        RunResult.load(run_folder)
