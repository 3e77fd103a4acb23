from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import QUICK, write_squares
from rich.console import Console

from caprompt import InputError
from caprompt.errors import OptionError
from caprompt.running import run_config, run_seeds


def test_flat_settings_become_a_run() -> None:
    config = run_config({"dataset": "digits", "tasks": [1, 4], "epochs": 3, "alpha": 1})
    assert config.tasks == (1, 4)
    assert config.options == {"epochs": 3, "alpha": 1}
    with pytest.raises(OptionError, match="unknown option 'alpha' for sequential-prompt"):
        run_config({"method": "sequential-prompt", "alpha": 1})
    with pytest.raises(OptionError, match="'validation' of run cannot be '2'"):
        run_config({"validation": 2})


def test_several_seeds_are_resumed_where_they_were_stopped(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caprompt import running

    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "data", ["red", "blue", "cyan"])
    given = {"dataset": "data", "backbone": str(backbone), "tasks": 2, **QUICK}
    real, calls = running.run, 0

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
        patch.setattr(running, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(resume=False)
    assert go(resume=True) == [f"runs/data-caprompt-tiny-seed{seed}" for seed in range(3)]
    assert go(resume=False) == [f"runs/data-caprompt-tiny-seed{seed}-2" for seed in range(3)]
    with pytest.raises(InputError, match="no unfinished run like this"):
        run_seeds(given, "default", 1, None, True, False, "cpu", Console(quiet=True))


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
