from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import QUICK, equal_tensors, write_squares
from safetensors.torch import load_file

from caprompt import ContinualClassifier, InputError, metrics
from caprompt.callbacks.events import Event, StepEnded
from caprompt.checkpoint.lock import LOCK
from caprompt.checkpoint.model import IN_PROGRESS
from caprompt.data import read_source
from caprompt.errors import DataError, OptionError
from caprompt.experiments import execution
from caprompt.experiments.artifacts import PREDICTIONS, FinalPredictions
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import load_test_images, run_experiment
from caprompt.experiments.run_folder import RunResult
from caprompt.methods.options import validate_options
from caprompt.utils import files

COLORS = ("red", "green", "blue", "yellow", "cyan")


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    data = tmp_path / "data"
    write_squares(data / "train", COLORS)
    write_squares(data / "test", COLORS, each=3, start=50)
    return RunConfig(dataset=str(data), backbone=str(backbone), tasks=(1, 2, 2), options=QUICK)


def test_every_seen_task_is_tested_after_each_task(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config, tmp_path / "run")
    assert [len(row) for row in results.matrix] == [1, 2, 3]
    assert [row.images for row in results.rows] == [(3,), (3, 6), (3, 6, 6)]
    assert results.finished
    assert results.summary()["ACC"] == pytest.approx(metrics.average_accuracy(results.matrix))
    assert (tmp_path / "run" / "curve.png").stat().st_size > 1000
    final = FinalPredictions.load(tmp_path / "run" / PREDICTIONS)
    assert 100 * (final.true == final.answer).mean() == pytest.approx(results.summary()["pooled"])
    assert RunResult.load(tmp_path / "run") == results


def test_plan_describes_the_run(config: RunConfig, tmp_path: Path) -> None:
    run_experiment(config, tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert sorted(name for task in plan["tasks"] for name in task) == sorted(COLORS)
    assert plan["train"]["images"] == 25
    assert plan["test"]["images"] == 15
    assert len(plan["backbone"]["sha256"]) == 64
    assert plan["options"]["epochs"] == 2
    assert {"caprompt", "torch", "python", "device"} <= plan["environment"].keys()
    assert plan["protocol"].startswith("honest")
    assert plan["test_images_in_training"] == 0
    assert plan["warnings"] == []


def test_class_order_follows_the_seed_or_the_names(config: RunConfig, tmp_path: Path) -> None:
    def run_order(name: str, **changes: object) -> list[str]:
        run_experiment(config.model_copy(update=changes), tmp_path / name)
        return [label for task in json.loads((tmp_path / name / "run.json").read_text())["tasks"] for label in task]

    assert run_order("natural", order="natural") == sorted(COLORS)
    assert run_order("seed0") == run_order("seed0-again")
    assert run_order("seed1", seed=1) != run_order("seed0-once-more")


def test_tasks_by_class_names(config: RunConfig, tmp_path: Path) -> None:
    tasks = (("red", "cyan"), ("blue",), ("yellow", "green"))
    assert run_experiment(config.model_copy(update={"tasks": tasks}), tmp_path / "run").tasks == [list(task) for task in tasks]


def test_validation_images_come_from_the_training_images(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config.model_copy(update={"validation": 0.4}), tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan["test"]["from"] == "training images"
    assert plan["train"]["images"] + plan["test"]["images"] == 25
    assert sum(results.rows[-1].images) == 10


def test_resumed_run_equals_an_uninterrupted_one(config: RunConfig, tmp_path: Path) -> None:
    uninterrupted = run_experiment(config, tmp_path / "uninterrupted")
    steps = 0

    def stop(event: Event) -> None:
        nonlocal steps
        steps += isinstance(event, StepEnded)
        if steps == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "stopped", callbacks=stop)
    assert not RunResult.load(tmp_path / "stopped").finished
    with pytest.raises(InputError, match="resume=True"):
        run_experiment(config, tmp_path / "stopped")
    resumed = run_experiment(config, tmp_path / "stopped", resume=True)
    assert resumed.matrix == uninterrupted.matrix
    states = [load_file(tmp_path / name / "model" / "state.safetensors") for name in ("uninterrupted", "stopped")]
    assert equal_tensors(*states)
    assert run_experiment(config, tmp_path / "stopped", resume=True) == resumed


def test_kill_while_the_last_model_is_saved_leaves_nothing_behind(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, killed = tmp_path / "run", tmp_path / "killed"

    def copy_before(commit_folder: Path) -> None:
        if commit_folder == folder / "model" and (commit_folder / files.READY).is_dir():
            shutil.rmtree(killed, ignore_errors=True)
            shutil.copytree(folder, killed)  # what a kill would leave: the model counts, but is not in place
        finish_commit(commit_folder)

    finish_commit = files.finish_commit
    monkeypatch.setattr(files, "finish_commit", copy_before)
    results = run_experiment(config, folder)
    assert {LOCK, files.READY, IN_PROGRESS} <= {path.name for path in (killed / "model").iterdir()}
    assert run_experiment(config, killed, resume=True).matrix == results.matrix
    names = [sorted(path.relative_to(run) for path in run.rglob("*")) for run in (folder, killed)]
    assert names[0] == names[1]


def test_run_goes_on_where_a_killed_save_cannot_be_finished(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model can be read as it is."""
    folder = tmp_path / "run"
    results = run_experiment(config, folder)
    replace(results, rows=results.rows[:-1]).save()  # as before the last test

    def fail(model_folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(model_folder))

    monkeypatch.setattr(execution, "finish_killed_save", fail)
    assert run_experiment(config, folder, resume=True).matrix == results.matrix


def test_resuming_with_other_settings_is_refused(config: RunConfig, tmp_path: Path) -> None:
    run_experiment(config, tmp_path / "run")
    with pytest.raises(InputError, match=r"other settings \(config differs\)"):
        run_experiment(config.model_copy(update={"seed": 3}), tmp_path / "run", resume=True)


def test_unreadable_images_are_detected_before_anything_is_written(config: RunConfig, tmp_path: Path) -> None:
    (Path(config.dataset) / "test" / "blue" / "bad.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.png"):
        run_experiment(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_experiment(config, tmp_path / "run", skip_bad=True)
    assert "bad.png" in json.loads((tmp_path / "run" / "run.json").read_text())["skipped"][0]


def test_validation_needs_two_images_of_every_class(config: RunConfig, tmp_path: Path) -> None:
    for path in sorted((Path(config.dataset) / "train" / "cyan").iterdir())[1:]:
        path.unlink()
    with pytest.raises(DataError, match="class 'cyan' has too few images"):
        run_experiment(config.model_copy(update={"validation": 0.3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_per_class_limits_the_images_of_each_class(config: RunConfig, tmp_path: Path) -> None:
    quick = config.model_copy(update={"per_class": 2})
    results = run_experiment(quick, tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (plan["train"]["images"], plan["test"]["images"]) == (10, 10)
    assert sum(results.rows[-1].images) == 10
    assert load_test_images(quick).counts() == dict.fromkeys(sorted(COLORS), 2)


def test_give_task_is_marked_as_oracle(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config.model_copy(update={"give_task": True}), tmp_path / "run")
    assert results.rows[-1].mean_passes == 1
    for name in ("run.json", "results.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["protocol"].startswith("oracle")


def test_curve_of_a_leaking_run_has_a_title(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    monkeypatch.setattr("caprompt.experiments.plots.plot_accuracy_curve", lambda runs, path, title: titles.append(title))
    run_experiment(config, tmp_path / "honest")
    run_experiment(
        config.model_copy(update={"options": {**QUICK, "protocol": "released", "classifier": "aligned"}}), tmp_path / "released"
    )
    assert titles[0] == ""
    assert "released" in titles[1]


def test_joint_run_learns_all_classes_at_once_and_reports_per_task(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config.model_copy(update={"joint": True}), tmp_path / "run")
    assert results.finished
    assert [row.images for row in results.rows] == [(3, 6, 6)]
    model = ContinualClassifier.load(tmp_path / "run" / "model")
    assert model.tasks == [sorted(COLORS)]
    test = read_source(Path(config.dataset) / "test")
    for names, accuracy in zip(results.tasks, results.matrix[0], strict=True):
        assert accuracy == pytest.approx(model.evaluate(test.select_classes(names)).accuracy)
    assert 0 < results.rows[0].task_identification <= 100
    assert results.summary()["AF"] == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["protocol"].startswith("joint")
    assert not (tmp_path / "run" / "curve.png").exists()
    assert RunResult.load(tmp_path / "run") == results
    assert run_experiment(config.model_copy(update={"joint": True}), tmp_path / "run", resume=True) == results


def test_joint_run_with_give_task_is_refused() -> None:
    with pytest.raises(OptionError, match="'joint' of run cannot be 'True': .*give_task has no meaning"):
        validate_options(RunConfig, {"joint": True, "give_task": True}, owner="run")


def test_run_starts_over_a_killed_first_write(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.next").write_text("{")
    assert run_experiment(config, tmp_path / "run", resume=True).finished


def test_invalid_config_writes_nothing(config: RunConfig, tmp_path: Path) -> None:
    for changes, error in (
        ({"tasks": (1, 2)}, InputError),
        ({"tasks": (("red",), ("mauve",))}, InputError),
        ({"method": "magic"}, InputError),
        ({"options": {"epochs": 0}}, OptionError),
        ({"dataset": "mnist-3d"}, InputError),
    ):
        with pytest.raises(error):
            run_experiment(config.model_copy(update=changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()
