from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from caprompt.errors import InputError, ModelFolderError
from caprompt.report.run_data import gather, read_run, run_folders


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    """A run to be spoilt."""
    return Path(shutil.copytree(runs / "seed0", tmp_path / "run"))


def test_a_run_and_all_that_lies_beside_it(runs: Path) -> None:
    (run,) = gather([runs / "seed0"])
    assert run.name == "seed0"
    assert run.results.finished
    assert run.final is not None
    assert len(run.final.true) == 24
    assert run.cost["trained_parameters"] > 0
    assert run.audit is None
    assert run.notes == []


def test_seeds_of_one_experiment_are_of_one_kind(runs: Path) -> None:
    first, second, other = gather([runs / "seed0", runs / "seed1", runs / "plain"])
    assert first.kind == second.kind
    assert first.kind != other.kind


def test_a_folder_of_runs_stands_for_them(runs: Path, tmp_path: Path) -> None:
    for name in ("seed0", "seed1"):
        shutil.copytree(runs / name, tmp_path / "many" / name)
    assert [folder.name for folder in run_folders([tmp_path / "many"])] == ["seed0", "seed1"]


def test_runs_of_different_protocols_are_not_mixed(runs: Path) -> None:
    for other in ("leak", "joint"):
        with pytest.raises(InputError, match="figures of different protocols"):
            gather([runs / "seed0", runs / other])


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("run.json", "{", "does not hold a run"),
        ("run.json", "[]", "does not hold a run"),
        ("run.json", '{"format": 99}', "written by a newer caprompt"),
        ("run.json", '{"format": 1}', "by another version"),
        ("results.json", "{", "of another version"),
        ("results.json", '{"rows": [{"accuracies": [1.0]}]}', "of another version"),
        ("results.json", '{"rows": []}', r"is not finished \(0 of 3 tests done\); finish it with caprompt run --resume"),
        ("predictions.npz", "PK", "predictions.npz' is damaged"),
        ("cost.json", "{", "cost.json' is damaged"),
        ("audit.json", "[1]", "audit.json' is damaged"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(copy: Path, name: str, text: str, sentence: str) -> None:
    (copy / name).write_text(text)
    with pytest.raises(ModelFolderError, match=sentence):
        read_run(copy, "run")


def test_a_run_without_results_is_half_written(copy: Path) -> None:
    (copy / "results.json").unlink()
    with pytest.raises(ModelFolderError, match="is not finished"):
        read_run(copy, "run")


def test_answers_of_another_run_are_refused(runs: Path, copy: Path) -> None:
    plan = json.loads((copy / "run.json").read_text())
    plan["tasks"][0][0] = "mauve"
    (copy / "run.json").write_text(json.dumps(plan))
    with pytest.raises(ModelFolderError, match="belongs to another run"):
        read_run(copy, "run")


def test_what_a_run_did_not_keep_is_noted(copy: Path) -> None:
    (copy / "predictions.npz").unlink()
    (copy / "cost.json").unlink()
    run = read_run(copy, "run")
    assert run.final is None
    assert run.cost == {}
    assert "did not keep the answers" in run.notes[0]


def test_an_audit_of_another_state_of_the_model_is_not_shown(copy: Path) -> None:
    state = json.loads((copy / "model" / "config.json").read_text())["files"]["state.safetensors"]
    (copy / "audit.json").write_text(json.dumps({"state": state, "clean": True}))
    assert read_run(copy, "run").audit == {"state": state, "clean": True}
    (copy / "audit.json").write_text(json.dumps({"state": "0" * 64, "clean": True}))
    run = read_run(copy, "run")
    assert run.audit is None
    assert "another state of the model" in run.notes[0]


def test_folders_that_are_no_runs(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run to report on"):
        gather([])
    with pytest.raises(InputError, match="there is no folder"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(ModelFolderError, match="does not hold a run"):
        gather([tmp_path])
    with pytest.raises(InputError, match="is given twice"):
        gather([runs / "seed0", runs / "plain" / ".." / "seed0"])
