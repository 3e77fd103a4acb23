from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grids import write_fake_cell
from helpers import QUICK, write_backbone, write_squares

from caprompt.callbacks.events import Event, LearnStarted
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.errors import ModelFolderError, OptionError
from caprompt.experiments import grid
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell, NullGridProgress, is_done, read_failure, read_measure, run_cell, run_grid
from caprompt.experiments.run_folder import RunResult

COLORS = ("red", "green", "blue", "yellow")


def number_of_classes(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    return {"classes": len(model.classes), "images": len(images)}


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    write_squares(tmp_path / "data", COLORS)
    return resolve_config(
        RunConfig(dataset=str(tmp_path / "data"), backbone=str(backbone), tasks=2, options={**QUICK, "epochs": 1})
    )


class Seen(NullGridProgress):
    """Remembers what happened."""

    def __init__(self) -> None:
        self.cells: list[tuple[str, str | None]] = []
        self.calls = 0

    def on_event(self, cell: Cell, event: Event) -> None:
        self.calls += isinstance(event, LearnStarted)

    def on_end(self, cell: Cell, reason: str | None) -> None:
        self.cells.append((cell.name, reason))


def test_the_name_follows_from_everything_that_says_what_a_run_is(config: RunConfig, tmp_path: Path) -> None:
    name = Cell(config).name
    assert name.startswith("data-caprompt-seed0-")
    assert Cell(config, (number_of_classes,)).name == name
    assert Cell(config.model_copy(update={"seed": 1})).name != name
    assert Cell(config.model_copy(update={"options": {**config.options, "alpha": 4.0}})).name != name
    moved = write_backbone(tmp_path / "moved.safetensors")
    assert Cell(config.model_copy(update={"backbone": str(moved)})).name == name


def test_what_is_left_to_defaults_is_the_same_cell_as_what_is_said() -> None:
    silent = resolve_config(RunConfig(dataset="digits"))
    said = resolve_config(RunConfig(dataset="digits", tasks=5, options={"alpha": 5.0, "epochs": 2}))
    assert silent == said
    assert silent.options["flip"] == 0.0
    assert Cell(silent).name == Cell(said).name


def test_finished_cells_are_not_run_again_but_measured_if_need_be(config: RunConfig, tmp_path: Path) -> None:
    cell, home, seen = Cell(config), tmp_path / "cells", Seen()
    run_grid([cell], home, progress=seen)
    assert seen.cells == [(cell.name, None)]
    assert seen.calls == 2
    assert is_done(home / cell.name, ())
    run_grid([cell], home, progress=seen)
    assert len(seen.cells) == 1
    run_grid([Cell(config, (number_of_classes,))], home, progress=seen)
    assert seen.calls == 2
    assert read_measure(home / cell.name, number_of_classes) == {"classes": 4, "images": 4}


def test_a_failure_is_written_down_passed_over_and_tried_again(config: RunConfig, tmp_path: Path) -> None:
    bad = Cell(config.model_copy(update={"tasks": 40}))
    good, home, seen = Cell(config), tmp_path / "cells", Seen()
    run_grid([bad, good], home, progress=seen)
    reason = read_failure(home / bad.name)
    assert reason is not None
    assert "40 tasks" in reason
    assert seen.cells == [(bad.name, reason), (good.name, None)]
    assert json.loads((home / f"{bad.name}.failed.json").read_text())["config"]["tasks"] == 40
    assert not (home / bad.name).exists()
    assert not is_done(home / bad.name, ())
    write_fake_cell(bad, home)
    run_cell(bad, home)
    assert read_failure(home / bad.name) is None


def test_several_at_once_give_the_same_numbers(config: RunConfig, tmp_path: Path) -> None:
    cells = [Cell(config.model_copy(update={"seed": seed})) for seed in range(2)]
    bad = Cell(config.model_copy(update={"tasks": 40}))
    seen = Seen()
    run_grid([*cells, bad], tmp_path / "many", jobs=2, progress=seen)
    run_grid(cells, tmp_path / "one")
    for cell in cells:
        one, other = (RunResult.load(tmp_path / place / cell.name).matrix for place in ("one", "many"))
        assert one == other
    assert dict(seen.cells)[bad.name] == read_failure(tmp_path / "many" / bad.name) is not None


def test_damaged_cells_are_told_of_and_not_run_over(config: RunConfig, tmp_path: Path) -> None:
    cell = Cell(config, (number_of_classes,))
    write_fake_cell(Cell(config), tmp_path)
    path = tmp_path / cell.name / "results.json"
    text = path.read_text()
    path.write_text(text[:40])
    with pytest.raises(ModelFolderError, match=r"results.json' is half-written .* remove the folder and run it again"):
        run_grid([cell], tmp_path)
    path.write_text(text)
    (tmp_path / cell.name / "number_of_classes.json").write_text("{")
    with pytest.raises(ModelFolderError, match="remove it and run the same command again"):
        read_measure(tmp_path / cell.name, number_of_classes)
    (tmp_path / cell.name / "run.json").write_text("{}")
    with pytest.raises(ModelFolderError, match="another version of caprompt"):
        run_grid([cell], tmp_path)


def test_at_least_one_job(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'jobs' must be at least 1"):
        run_grid([], tmp_path, jobs=0)


# -- killed --------------------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from caprompt.experiments.execution import RunConfig
from caprompt.experiments.grid import Cell, NullGridProgress, resolved, run_grid

class Say(NullGridProgress):
    def on_start(self, cell):
        print("began", cell.name, flush=True)
    def on_end(self, cell, reason):
        print("ended", cell.name, reason, flush=True)

if __name__ == "__main__":
    data, backbone, home, jobs, seeds = sys.argv[1:]
    common = dict(dataset=data, backbone=backbone, tasks=2)
    cells = [
        Cell(resolved(RunConfig(**common, method=method, seed=seed, options=options)))
        for method, options in (("caprompt", {options}), ("linear", {"epochs": 3, "batch_size": 4}))
        for seed in range(int(seeds))
    ]
    run_grid(cells, Path(home), jobs=int(jobs), device="cpu", progress=Say())
""".replace("{options}", repr({**QUICK, "epochs": 3}))


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "jobs", "until"), [(12, 1, (1, 3, 2)), (6, 2, (1, 1))])
def test_a_grid_killed_again_and_again_ends_complete_and_the_same(
    tmp_path: Path, backbone: Path, cells: int, jobs: int, until: tuple[int, ...]
) -> None:
    """Killed as soon as so many cells have ended, and a little later."""
    write_squares(tmp_path / "data", COLORS)
    (tmp_path / "grid.py").write_text(SCRIPT)

    def start(home: str) -> subprocess.Popen[str]:
        words = [sys.executable, "grid.py", "data", str(backbone), home, str(jobs), str(cells // 2)]
        return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    whole = start("whole").communicate(timeout=300)[0].splitlines()
    assert sum(line.startswith("ended") for line in whole) == cells
    chance, said = random.Random(jobs), []
    for ended in until:
        said.append(killed_after(start("killed"), ended, delay=chance.uniform(0.0, 0.3)))
    said.append(start("killed").communicate(timeout=300)[0].splitlines())

    done: set[str] = set()
    for lines in said:
        began = {line.split()[1] for line in lines if line.startswith("began")}
        assert not began & done, "a finished cell was run again"
        done |= {line.split()[1] for line in lines if line.startswith("ended")}
    assert said[-1], "the kills should have fallen into the middle of the work"
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert names == {path.name for path in (tmp_path / "killed").iterdir()}
    assert len(names) == cells
    for name in names:
        one, other = (RunResult.load(tmp_path / home / name) for home in ("whole", "killed"))
        assert one.finished
        assert other.finished
        assert one.matrix == other.matrix


def killed_after(process: subprocess.Popen[str], ended: int, delay: float) -> list[str]:
    """Let a process go on until some cells have ended and a little more, and kill it; what it has said."""
    assert process.stdout is not None
    lines: list[str] = []
    while sum(line.startswith("ended") for line in lines) < ended and (line := process.stdout.readline()):
        lines.append(line)
    time.sleep(delay)
    assert process.poll() is None, "the process should be alive when it is killed"
    process.kill()
    lines += process.communicate(timeout=60)[0].splitlines()
    return lines


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_with_children(tmp_path: Path, backbone: Path) -> None:
    write_squares(tmp_path / "data", COLORS)
    (tmp_path / "grid.py").write_text(SCRIPT)
    words = [sys.executable, "grid.py", "data", str(backbone), "home", "2", "3"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("ended"):
        assert line
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and its children
    _, complaint = process.communicate(timeout=60)
    assert complaint.count("Traceback") == 1, complaint  # the script's own: nothing catches it there
    assert "KeyboardInterrupt" in complaint
    assert is_gone(process.pid)


def is_gone(group: int, patience: float = 20.0) -> bool:
    """Does no process of this group remain, soon? The one that minds shared resources takes a moment."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_waits_while_a_child_is_started() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with grid._interrupt_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("started")
        steps.append("never")
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with grid._interrupt_deferred():
        steps.append("undisturbed")
    assert steps[-1] == "undisturbed"
