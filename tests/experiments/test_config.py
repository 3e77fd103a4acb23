from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from helpers import QUICK, write_squares
from rich.console import Console

from caprompt import InputError
from caprompt.cli.commands.run import run_seeds
from caprompt.errors import OptionError
from caprompt.experiments.config import build_run_config


def test_flat_settings_become_a_run() -> None:
    config = build_run_config({"dataset": "digits", "tasks": [1, 4], "epochs": 3, "alpha": 1})
    assert config.tasks == (1, 4)
    assert config.options == {"epochs": 3, "alpha": 1}
    with pytest.raises(OptionError, match="unknown option 'alpha' for sequential-prompt"):
        build_run_config({"method": "sequential-prompt", "alpha": 1})
    with pytest.raises(OptionError, match="'validation' of run cannot be '2'"):
        build_run_config({"validation": 2})


def test_several_seeds_are_resumed_where_they_were_stopped(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caprompt.experiments import execution

    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue", "cyan"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}
    real, calls = execution.run_experiment, 0

    def interrupted(config, *args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    def go(resume: bool) -> list[str]:
        found = run_seeds(given, "default", 3, None, resume, False, "cpu", Console(quiet=True))
        return [str(results.folder) for results in found]

    with monkeypatch.context() as patch:
        patch.setattr(execution, "run_experiment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(resume=False)
    assert go(resume=True) == [f"runs/data-caprompt-tiny-seed{seed}" for seed in range(3)]
    assert go(resume=False) == [f"runs/data-caprompt-tiny-seed{seed}-2" for seed in range(3)]
    with pytest.raises(InputError, match="no unfinished run like this"):
        run_seeds(given, "default", 1, None, True, False, "cpu", Console(quiet=True))


def test_joint_runs_have_folders_of_their_own(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, "method": "linear", "epochs": 1, "joint": True}
    console = Console(record=True, quiet=False, file=(tmp_path / "shown").open("w"), width=120)
    (results,) = run_seeds(given, "budget", 1, None, False, False, "cpu", console)
    assert str(results.folder) == "runs/data-linear-joint-tiny-seed0"
    assert "linear-joint on data" in console.export_text()


def test_a_preset_gives_way_to_what_is_typed(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}
    (results,) = run_seeds(given, "paper", 1, None, False, False, "cpu", Console(quiet=True))
    plan = json.loads((results.folder / "run.json").read_text())
    assert plan["config"]["order"] == "natural"
    assert plan["options"]["init"] == "uniform"
    assert plan["options"]["normalise"] == "none"
    assert plan["options"]["length"] == QUICK["length"]


def test_a_leaking_run_is_marked_wherever_it_is_seen(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, "protocol": "released", "classifier": "aligned", **QUICK}
    console = Console(width=200, record=True, file=io.StringIO())
    (results,) = run_seeds(given, "default", 1, None, False, False, "cpu", console)
    assert results.folder == Path("runs/data-caprompt-released-tiny-seed0")
    shown = console.export_text()
    assert shown.count("(protocol RELEASED: no honest") == 2
    assert "protocol released: as the authors' program has it" in shown
    for name in ("run.json", "results.json"):
        assert json.loads((results.folder / name).read_text())["protocol"].startswith("released:")
    assert json.loads((results.folder / "model" / "config.json").read_text())["options"]["protocol"] == "released"


def test_methods_without_a_leaking_program_are_honest() -> None:
    assert build_run_config({"method": "sequential-prompt", "protocol": "honest"}).options == {}
    with pytest.raises(OptionError, match="sequential-prompt is always honest; the protocol 'released' is there for: caprompt"):
        build_run_config({"method": "sequential-prompt", "protocol": "released"})
    with pytest.raises(OptionError, match="option 'protocol' of caprompt cannot be 'lax'"):
        build_run_config({"protocol": "lax"})


def test_test_images_among_the_training_images_are_told_of(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data" / "train", ["red", "blue"])
    write_squares(tmp_path / "data" / "test", ["red", "blue"], start=4)  # the first of them is the last to train on
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}
    (results,) = run_seeds(given, "default", 1, None, False, False, "cpu", Console(quiet=True))
    plan = json.loads((results.folder / "run.json").read_text())
    assert plan["test_images_in_training"] == 2
    assert plan["warnings"] == ["2 of the 10 test images are among the training images too"]
    assert "warning: 2 of the 10 test images are among the training images too" in capsys.readouterr().err


def test_a_run_can_be_watched_and_tracked(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}
    console = Console(width=100, record=True, file=io.StringIO())
    (results,) = run_seeds(given, "default", 1, None, False, False, "cpu", console, watch=True, tensorboard=True)
    shown = console.export_text()
    assert shown.index("after task 1: ACC") < shown.index("after task 2: ACC") < shown.index("saved in")
    assert list((results.folder / "tensorboard").iterdir())
