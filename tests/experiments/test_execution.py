from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import QUICK, equal_tensors, write_squares
from safetensors.torch import load_file

from caprompt import ContinualClassifier, InputError, metrics
from caprompt.callbacks.events import Event, StepEnded
from caprompt.data import read_source
from caprompt.errors import DataError, ModelFolderError, OptionError
from caprompt.experiments.artifacts import PREDICTIONS, FinalPredictions
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import load_test_images, run_experiment
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.methods.options import validate_options

COLORS = ("red", "green", "blue", "yellow", "cyan")


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    data = tmp_path / "data"
    write_squares(data / "train", COLORS)
    write_squares(data / "test", COLORS, each=3, start=50)
    return RunConfig(dataset=str(data), backbone=str(backbone), tasks=(1, 2, 2), options=QUICK)


def test_a_run_tests_every_task_seen_after_each(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config, tmp_path / "run")
    assert [len(row) for row in results.matrix] == [1, 2, 3]
    assert [row.images for row in results.rows] == [(3,), (3, 6), (3, 6, 6)]
    assert results.finished
    assert results.summary()["ACC"] == pytest.approx(metrics.average_accuracy(results.matrix))
    assert (tmp_path / "run" / "curve.png").stat().st_size > 1000
    final = FinalPredictions.load(tmp_path / "run" / PREDICTIONS)
    assert 100 * (final.true == final.answer).mean() == pytest.approx(results.summary()["pooled"])
    assert RunResult.load(tmp_path / "run") == results


def test_the_plan_says_what_the_run_was(config: RunConfig, tmp_path: Path) -> None:
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


def test_order_follows_the_seed_and_natural_order_the_names(config: RunConfig, tmp_path: Path) -> None:
    def tasks(name: str, **changes: object) -> list[str]:
        run_experiment(config.model_copy(update=changes), tmp_path / name)
        return [c for task in json.loads((tmp_path / name / "run.json").read_text())["tasks"] for c in task]

    natural = tasks("natural", order="natural")
    assert natural == sorted(COLORS)
    assert tasks("zero") == tasks("again")
    assert tasks("one", seed=1) != tasks("zero-more")


def test_tasks_by_name(config: RunConfig, tmp_path: Path) -> None:
    named = (("red", "cyan"), ("blue",), ("yellow", "green"))
    assert run_experiment(config.model_copy(update={"tasks": named}), tmp_path / "run").tasks == [list(task) for task in named]


def test_validation_images_come_from_the_training_images(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config.model_copy(update={"validation": 0.4}), tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan["test"]["from"] == "training images"
    assert plan["train"]["images"] + plan["test"]["images"] == 25
    assert sum(results.rows[-1].images) == 10


def test_stopped_and_resumed_is_the_same_run(config: RunConfig, tmp_path: Path) -> None:
    straight = run_experiment(config, tmp_path / "straight")
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
    assert resumed.matrix == straight.matrix
    one, other = (load_file(tmp_path / name / "model" / "state.safetensors") for name in ("straight", "stopped"))
    assert equal_tensors(one, other)
    assert run_experiment(config, tmp_path / "stopped", resume=True) == resumed


def test_a_run_is_resumed_only_as_what_it_was(config: RunConfig, tmp_path: Path) -> None:
    run_experiment(config, tmp_path / "run")
    with pytest.raises(InputError, match=r"other settings \(config differs\)"):
        run_experiment(config.model_copy(update={"seed": 3}), tmp_path / "run", resume=True)
    with pytest.raises(ModelFolderError, match="does not hold a run"):
        RunResult.load(tmp_path)


def test_a_run_of_a_newer_version_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 2}')
    with pytest.raises(ModelFolderError, match=r"written by a newer caprompt \(format 2"):
        read_plan(tmp_path)
    for text in ("[]", "{", '{"format": "new"}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ModelFolderError, match="does not hold a run"):
            read_plan(tmp_path)


def test_pictures_that_cannot_be_read_are_found_before_anything_is_written(config: RunConfig, tmp_path: Path) -> None:
    (Path(config.dataset) / "test" / "blue" / "bad.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.png"):
        run_experiment(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run_experiment(config, tmp_path / "run", skip_bad=True)
    assert "bad.png" in json.loads((tmp_path / "run" / "run.json").read_text())["skipped"][0]


def test_validation_needs_an_image_of_every_class_to_spare(config: RunConfig, tmp_path: Path) -> None:
    for picture in sorted((Path(config.dataset) / "train" / "cyan").iterdir())[1:]:
        picture.unlink()
    with pytest.raises(DataError, match="class 'cyan' has too few images"):
        run_experiment(config.model_copy(update={"validation": 0.3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_at_most_so_many_images_of_each_class(config: RunConfig, tmp_path: Path) -> None:
    quick = config.model_copy(update={"per_class": 2})
    results = run_experiment(quick, tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (plan["train"]["images"], plan["test"]["images"]) == (10, 10)
    assert sum(results.rows[-1].images) == 10
    assert load_test_images(quick).counts() == dict.fromkeys(sorted(COLORS), 2)


def test_half_written_runs_and_those_of_other_versions_are_told_of(config: RunConfig, tmp_path: Path) -> None:
    run_experiment(config, tmp_path / "run")
    results, plan = tmp_path / "run" / "results.json", tmp_path / "run" / "run.json"
    text = results.read_text()
    for broken in (text[:30], "[]", '{"rows": [{"accuracy": 1}]}'):
        results.write_text(broken)
        with pytest.raises(ModelFolderError, match=r"results.json' is half-written or of another version .* remove the folder"):
            RunResult.load(tmp_path / "run")
    plan.write_text('{"config": ')
    with pytest.raises(ModelFolderError, match=r"run.json is half-written; remove the folder"):
        RunResult.load(tmp_path / "run")
    plan.write_text('{"config": {}}')
    with pytest.raises(ModelFolderError, match="was written by another version of caprompt; remove the folder"):
        RunResult.load(tmp_path / "run")


def test_giving_the_task_away_is_marked(config: RunConfig, tmp_path: Path) -> None:
    results = run_experiment(config.model_copy(update={"give_task": True}), tmp_path / "run")
    assert results.rows[-1].mean_passes == 1
    for name in ("run.json", "results.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["protocol"].startswith("oracle")


def test_the_curve_of_a_leaking_run_has_a_title(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    monkeypatch.setattr("caprompt.experiments.plots.accuracy_curve", lambda runs, path, title: titles.append(title))
    run_experiment(config, tmp_path / "honest")
    run_experiment(
        config.model_copy(update={"options": {**QUICK, "protocol": "released", "classifier": "aligned"}}), tmp_path / "released"
    )
    assert titles[0] == ""
    assert "released" in titles[1]


def test_a_joint_run_learns_all_at_once_and_tells_by_task(config: RunConfig, tmp_path: Path) -> None:
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


def test_a_joint_run_has_no_task_to_give_away() -> None:
    with pytest.raises(OptionError, match="'joint' of run cannot be 'True': .*give_task has no meaning"):
        validate_options(RunConfig, {"joint": True, "give_task": True}, owner="run")


def test_what_a_kill_left_of_the_first_write_is_no_obstacle(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.next").write_text("{")
    assert run_experiment(config, tmp_path / "run", resume=True).finished


def test_bad_plans_write_nothing(config: RunConfig, tmp_path: Path) -> None:
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
