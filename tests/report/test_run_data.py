from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from mutations import is_refused, mutate_json, mutate_tensors

from caprompt.errors import InputError, ModelFolderError
from caprompt.report.page import render
from caprompt.report.run_data import find_run_folders, load_runs, read_run

SEED = 20261116


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
        ("cost.json", '{"test_seconds": 3.0}', "cost.json' is damaged"),
        ("cost.json", '{"trained_parameters": "many"}', "cost.json' is damaged"),
        ("cost.json", '{"kept_bytes": NaN}', "cost.json' is damaged"),
        ("cost.json", "[" * 10**5, "cost.json' is damaged"),
        ("run.json", "[" * 10**5, "does not hold a run"),
        ("results.json", '{"rows": [[]]}', "of another version"),
    ],
)
def test_damaged_or_unfinished_runs_raise(run_folder: Path, name: str, text: str, message: str) -> None:
    (run_folder / name).write_text(text)
    with pytest.raises(ModelFolderError, match=message):
        read_run(run_folder, "run")


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.update(tasks=[]),
        lambda plan: plan.update(tasks=[1, 2, 3]),
        lambda plan: plan.update(config=[]),
        lambda plan: plan.update(protocol=None),
        lambda plan: plan.update(warnings="none"),
        lambda plan: plan["train"].pop("images"),
        lambda plan: plan["train"].update(images="many"),
        lambda plan: plan["test"].update(sha256=None),
        lambda plan: plan["backbone"].clear(),
        lambda plan: plan["config"].update(seed="x"),
    ],
)
def test_plan_of_wrong_types_raises(run_folder: Path, change: Callable[[Any], object]) -> None:
    change_json(run_folder / "run.json", change)
    with pytest.raises(ModelFolderError, match="is damaged"):
        read_run(run_folder, "run")


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results["rows"][0].update(accuracies=[]),
        lambda results: results["rows"][1].update(accuracies=[50.0]),
        lambda results: results["rows"][2].update(accuracies=[50.0, float("nan"), 50.0]),
        lambda results: results["rows"][2].update(images=[0, 0, 0]),
        lambda results: results["rows"][2].update(images=[4, 4]),
        lambda results: results["rows"][2].update(seconds="long"),
        lambda results: results["rows"][2].pop("mean_passes"),
        lambda results: results["rows"].append(results["rows"][-1]),
    ],
)
def test_results_that_are_no_accuracy_matrix_raise(run_folder: Path, change: Callable[[Any], object]) -> None:
    change_json(run_folder / "results.json", change)
    with pytest.raises(ModelFolderError, match="of another version"):
        read_run(run_folder, "run")


@pytest.mark.parametrize(("count", "step"), [(200, 5), pytest.param(300, 1, marks=pytest.mark.slow)])
def test_altered_runs_are_rendered_or_raise_one_sentence(runs: Path, tmp_path: Path, count: int, step: int) -> None:
    """Every `step`-th run that can be read is rendered as well, which takes most of the time."""
    folder = tmp_path / "run"
    state = json.loads((runs / "seed0" / "model" / "config.json").read_text())["files"]["state.safetensors"]
    arrangement = {"name": "x", "accuracy": 50.0, "average_accuracy": 50.0, "changed": 0, "largest_difference": 0.0}
    audit = {"state": state, "clean": True, "images": 24, "arrangements": [arrangement], "warnings": ["w"]}
    refused = 0
    for number in range(count):
        rng = Random(f"{SEED}-{number}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(runs / "seed0", folder, ignore=shutil.ignore_patterns("*.safetensors", "versions"))
        (folder / "audit.json").write_text(json.dumps(audit))
        case = f"seed {SEED}, case {number}: {mutate_run(folder, rng)}"
        refused += is_refused(lambda: load_runs([folder]), case)
        if number % step == 0:
            is_refused(lambda: render(load_runs([folder]), images=False), case)
    assert refused > 0.4 * count


def test_accuracy_that_is_no_percentage_raises(run_folder: Path) -> None:
    change_json(run_folder / "results.json", lambda results: results["rows"][0].update(accuracies=[101.0]))
    with pytest.raises(ModelFolderError, match="is damaged"):
        read_run(run_folder, "run")


def mutate_run(folder: Path, rng: Random) -> str:
    """Damage one file of a run folder, and return a description of the damage."""
    name = rng.choice(("run.json", "results.json", "cost.json", "audit.json", "predictions.npz", "model/config.json"))
    if name == "predictions.npz":
        with np.load(folder / name) as file:
            arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "classes"}
            classes = file["classes"]
        arrays, change = mutate_tensors(arrays, rng)
        kept = {key: value.numpy() for key, value in arrays.items() if key.isidentifier()}
        np.savez(folder / name, classes=classes[: rng.choice((None, None, None, 1))], **kept)
    else:
        document, change = mutate_json(json.loads((folder / name).read_text()), rng)
        (folder / name).write_text(json.dumps(document))
    return f"{name}: {change}"


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
    audit = {"state": state, "clean": True, "images": 24, "arrangements": []}
    (run_folder / "audit.json").write_text(json.dumps(audit))
    assert read_run(run_folder, "run").audit == audit
    (run_folder / "audit.json").write_text(json.dumps({**audit, "state": "0" * 64}))
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
