from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from caprompt.errors import InputError, ModelFolderError
from caprompt.report.run_data import find_run_folders, load_runs, read_run


@pytest.fixture
def run_folder(runs: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(runs / "seed0", tmp_path / "run"))


def test_run_and_the_files_saved_with_it(runs: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    assert run.name == "seed0"
    assert run.results.finished
    assert run.predictions is not None
    assert len(run.predictions.true) == 24
    assert run.cost["trained_parameters"] > 0
    assert run.audit is None
    assert run.notes == []


def test_seeds_of_one_experiment_share_a_group_key(runs: Path) -> None:
    first, second, other = load_runs([runs / "seed0", runs / "seed1", runs / "plain"])
    assert first.group_key == second.group_key
    assert first.group_key != other.group_key


def test_folder_of_runs_is_replaced_by_its_runs(runs: Path, tmp_path: Path) -> None:
    for name in ("seed0", "seed1"):
        shutil.copytree(runs / name, tmp_path / "many" / name)
    assert [folder.name for folder in find_run_folders([tmp_path / "many"])] == ["seed0", "seed1"]


def test_runs_of_different_protocols_raise(runs: Path) -> None:
    for other in ("leak", "joint"):
        with pytest.raises(InputError, match="results of different protocols"):
            load_runs([runs / "seed0", runs / other])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{", "does not hold a run"),
        ("run.json", "[]", "does not hold a run"),
        ("run.json", '{"format": 99}', "written by a newer caprompt"),
        ("run.json", '{"format": 1}', "by another version"),
        ("results.json", "{", "of another version"),
        ("results.json", '{"rows": [{"accuracies": [1.0]}]}', "of another version"),
        ("results.json", '{"rows": []}', r"is not finished \(0 of 3 tests done\); finish it with resume=True"),
        ("predictions.npz", "PK", "predictions.npz' is damaged"),
        ("cost.json", "{", "cost.json' is damaged"),
        ("audit.json", "[1]", "audit.json' is damaged"),
    ],
)
def test_damaged_or_unfinished_runs_raise(run_folder: Path, name: str, text: str, message: str) -> None:
    (run_folder / name).write_text(text)
    with pytest.raises(ModelFolderError, match=message):
        read_run(run_folder, "run")


def test_run_without_results_is_not_finished(run_folder: Path) -> None:
    (run_folder / "results.json").unlink()
    with pytest.raises(ModelFolderError, match="is not finished"):
        read_run(run_folder, "run")


def test_predictions_of_another_run_raise(runs: Path, run_folder: Path) -> None:
    plan = json.loads((run_folder / "run.json").read_text())
    plan["tasks"][0][0] = "mauve"
    (run_folder / "run.json").write_text(json.dumps(plan))
    with pytest.raises(ModelFolderError, match="belongs to another run"):
        read_run(run_folder, "run")


def test_missing_predictions_are_noted(run_folder: Path) -> None:
    (run_folder / "predictions.npz").unlink()
    (run_folder / "cost.json").unlink()
    run = read_run(run_folder, "run")
    assert run.predictions is None
    assert run.cost == {}
    assert "were not saved" in run.notes[0]


def test_audit_of_another_state_of_the_model_is_not_shown(run_folder: Path) -> None:
    state = json.loads((run_folder / "model" / "config.json").read_text())["files"]["state.safetensors"]
    (run_folder / "audit.json").write_text(json.dumps({"state": state, "clean": True}))
    assert read_run(run_folder, "run").audit == {"state": state, "clean": True}
    (run_folder / "audit.json").write_text(json.dumps({"state": "0" * 64, "clean": True}))
    run = read_run(run_folder, "run")
    assert run.audit is None
    assert "another state of the model" in run.notes[0]


def test_paths_that_are_not_runs_raise(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run to report on"):
        load_runs([])
    with pytest.raises(InputError, match="there is no folder"):
        load_runs([tmp_path / "nowhere"])
    with pytest.raises(ModelFolderError, match="does not hold a run"):
        load_runs([tmp_path])
    with pytest.raises(InputError, match="is given twice"):
        load_runs([runs / "seed0", runs / "plain" / ".." / "seed0"])
