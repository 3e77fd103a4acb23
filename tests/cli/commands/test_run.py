from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import QUICK, assert_refused, caprompt_in_process, write_squares
from rich.console import Console

from caprompt import InputError
from caprompt.cli.commands.run import run_seeds
from caprompt.experiments.run_folder import RunResult

# -- the command ---------------------------------------------------------------------------------------------------------------


def test_prints_a_table_and_the_folder_of_each_seed(workspace: Path, quick: tuple[str, ...]) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 2, "--out", "out", *quick]
    done = caprompt_in_process(*words, "--seeds", 2, cwd=workspace)
    assert done.returncode == 0, done.stderr
    for word in ("ACC", "AF", "saved in out/seed0", "saved in out/seed1", "mean", "protocol honest"):
        assert word in done.stdout
    assert (workspace / "out" / "seed1" / "results.json").is_file()
    assert_refused(workspace, [*words, "--seeds", 2], "is not empty; choose another folder", caprompt_in_process)
    assert_refused(workspace, [*words, "--seeds", 2], "with --resume", caprompt_in_process)


def test_joint_run_prints_the_accuracy_of_each_task(workspace: Path) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 2, "--out", "joint", "--joint"]
    done = caprompt_in_process(*words, "--method", "finetune", "--set", "epochs=1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    for word in ("all classes learned at once", "finetune-joint on week1", "protocol joint"):
        assert word in done.stdout
    assert len(json.loads((workspace / "joint" / "results.json").read_text())["rows"]) == 1


def test_runs_are_numbered_and_a_finished_one_cannot_be_resumed(workspace: Path, quick: tuple[str, ...]) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 1, *quick]
    for expected in ("runs/week1-caprompt-tiny-seed0", "runs/week1-caprompt-tiny-seed0-2"):
        assert f"saved in {expected}\n" in caprompt_in_process(*words, cwd=workspace).stdout
    sentence = "there is no unfinished run like this under 'runs'; start it without --resume"
    assert_refused(workspace, [*words, "--resume"], sentence, caprompt_in_process)


def test_flags_override_set_and_set_overrides_the_config_file(workspace: Path) -> None:
    (workspace / "quick.toml").write_text(
        'dataset = "week1"\nbackbone = "tiny.safetensors"\ntasks = [["green"], ["red"]]\nepochs = 1\nlength = 4\nprojections = 50\n'
    )
    words = ["run", "--config", "quick.toml", "--set", "epochs=2", "--set", "seed=3", "--seed", 5, "--out", "configured"]
    done = caprompt_in_process(*words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    plan = json.loads((workspace / "configured" / "run.json").read_text())
    assert plan["tasks"] == [["green"], ["red"]]
    assert plan["options"]["epochs"] == 2
    assert plan["config"]["seed"] == 5


def test_missing_or_unknown_tracker_is_refused_before_anything_is_written(
    workspace: Path, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 1, *quick, "--out", "tracked"]
    assert_refused(workspace, [*words, "--track", "notes"], "--track", caprompt_in_process)
    monkeypatch.setitem(sys.modules, "trackio", None)
    sentence = "tracking with trackio needs the package trackio: pip install 'caprompt[track]'"
    assert_refused(workspace, [*words, "--track", "trackio"], sentence, caprompt_in_process)


# -- run_seeds -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return settings of a quick run on two classes, `data` in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue"])
    return {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}


def run_one(settings: dict[str, Any], preset: str = "default", console: Console | None = None, **flags: Any) -> RunResult:
    (result,) = run_seeds(settings, preset, 1, None, False, False, "cpu", console or Console(quiet=True), **flags)
    return result


def test_several_seeds_are_resumed_where_they_were_stopped(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from caprompt.experiments import execution

    run_experiment, num_calls = execution.run_experiment, 0

    def interrupt_second(*args: Any, **kwargs: Any) -> RunResult:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise KeyboardInterrupt
        return run_experiment(*args, **kwargs)

    def run_three(resume: bool) -> list[str]:
        results = run_seeds(settings, "default", 3, None, resume, False, "cpu", Console(quiet=True))
        return [str(result.folder) for result in results]

    with monkeypatch.context() as patch:
        patch.setattr(execution, "run_experiment", interrupt_second)
        with pytest.raises(KeyboardInterrupt):
            run_three(resume=False)
    assert run_three(resume=True) == [f"runs/data-caprompt-tiny-seed{seed}" for seed in range(3)]
    assert run_three(resume=False) == [f"runs/data-caprompt-tiny-seed{seed}-2" for seed in range(3)]
    with pytest.raises(InputError, match="no unfinished run like this"):
        run_seeds(settings, "default", 1, None, True, False, "cpu", Console(quiet=True))


def test_joint_runs_have_their_own_folders(settings: dict[str, Any], backbone: Path) -> None:
    joint = {"dataset": "data", "backbone": str(backbone), "tasks": 2, "method": "linear", "epochs": 1, "joint": True}
    console = Console(record=True, file=io.StringIO(), width=120)
    result = run_one(joint, "budget", console)
    assert str(result.folder) == "runs/data-linear-joint-tiny-seed0"
    assert "linear-joint on data" in console.export_text()


def test_settings_override_the_preset(settings: dict[str, Any]) -> None:
    plan = json.loads((run_one(settings, "paper").folder / "run.json").read_text())
    assert plan["config"]["order"] == "natural"
    assert plan["options"]["init"] == "uniform"
    assert plan["options"]["normalise"] == "none"
    assert plan["options"]["length"] == QUICK["length"]


def test_leaking_run_is_marked_everywhere(settings: dict[str, Any]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    result = run_one({**settings, "protocol": "released", "classifier": "aligned"}, console=console)
    assert result.folder == Path("runs/data-caprompt-released-tiny-seed0")
    text = " ".join(console.export_text().split())
    assert text.count("(not comparable: protocol=released)") == 2
    assert "protocol released: as in the authors' code" in text
    for name in ("run.json", "results.json"):
        assert json.loads((result.folder / name).read_text())["protocol"].startswith("released:")
    assert json.loads((result.folder / "model" / "config.json").read_text())["options"]["protocol"] == "released"


def test_warns_of_test_images_among_the_training_images(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_squares(tmp_path / "split" / "train", ["red", "blue"])
    write_squares(tmp_path / "split" / "test", ["red", "blue"], start=4)  # the first of them is the last to train on
    plan = json.loads((run_one({**settings, "dataset": "split"}).folder / "run.json").read_text())
    assert plan["test_images_in_training"] == 2
    (warning,) = plan["warnings"]
    assert "2 of the 10 test images" in warning
    assert f"warning: {warning}" in capsys.readouterr().err


def test_accuracy_curve_and_tensorboard(settings: dict[str, Any]) -> None:
    pytest.importorskip("tensorboard")
    console = Console(width=100, record=True, file=io.StringIO())
    result = run_one(settings, console=console, watch=True, track=["tensorboard"])
    text = console.export_text()
    assert text.index("after task 1: ACC") < text.index("after task 2: ACC") < text.index("saved in")
    assert list((result.folder / "tensorboard").iterdir())
