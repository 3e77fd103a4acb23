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
from helpers import PRINTING_PROGRESS, QUICK, write_backbone, write_squares

from caprompt.callbacks.events import Event, LearnStarted
from caprompt.classifier import ContinualClassifier
from caprompt.data import Samples
from caprompt.errors import ModelFolderError, OptionError
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import LEASES, Cell, NullGridProgress, is_done, read_failure, read_measure, run_cell, run_grid
from caprompt.experiments.run_folder import RunResult

COLORS = ("red", "green", "blue", "yellow")


def count_classes(model: ContinualClassifier, images: Samples) -> Mapping[str, Any]:
    return {"classes": len(model.classes), "images": len(images)}


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    write_squares(tmp_path / "data", COLORS)
    return resolve_config(
        RunConfig(dataset=str(tmp_path / "data"), backbone=str(backbone), tasks=2, options={**QUICK, "epochs": 1})
    )


class RecordingProgress(NullGridProgress):
    """Progress that records the cells that ended and counts the calls of `learn`."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str | None]] = []
        self.num_calls = 0

    def on_event(self, cell: Cell, event: Event) -> None:
        self.num_calls += isinstance(event, LearnStarted)

    def on_end(self, cell: Cell, reason: str | None) -> None:
        self.ended.append((cell.name, reason))


def test_cell_name_depends_on_every_setting(config: RunConfig, tmp_path: Path) -> None:
    name = Cell(config).name
    assert name.startswith("data-caprompt-seed0-")
    assert Cell(config, (count_classes,)).name == name
    assert Cell(config.model_copy(update={"seed": 1})).name != name
    assert Cell(config.model_copy(update={"options": {**config.options, "modulation": 0.5}})).name != name
    moved = write_backbone(tmp_path / "moved.safetensors")
    assert Cell(config.model_copy(update={"backbone": str(moved)})).name == name


def test_explicit_defaults_are_the_same_cell() -> None:
    implicit = resolve_config(RunConfig(dataset="digits"))
    explicit = resolve_config(RunConfig(dataset="digits", tasks=5, options={"modulation": 0.1, "epochs": 2}))
    assert implicit == explicit
    assert implicit.options["flip"] == 0.0
    assert Cell(implicit).name == Cell(explicit).name


def test_finished_cell_is_not_run_again_but_measured_if_a_measure_is_missing(config: RunConfig, tmp_path: Path) -> None:
    cell, cells_dir, progress = Cell(config), tmp_path / "cells", RecordingProgress()
    run_grid([cell], cells_dir, progress=progress)
    assert progress.ended == [(cell.name, None)]
    assert progress.num_calls == 2
    assert is_done(cells_dir / cell.name, ())
    run_grid([cell], cells_dir, progress=progress)
    assert len(progress.ended) == 1
    run_grid([Cell(config, (count_classes,))], cells_dir, progress=progress)
    assert progress.num_calls == 2
    assert read_measure(cells_dir / cell.name, count_classes) == {"classes": 4, "images": 4}


def test_cell_of_a_plain_run_is_leased(config: RunConfig, tmp_path: Path) -> None:
    """Where someone else has finished it while its lease was waited for, it is not run."""
    cells, cells_dir, held = [Cell(config), Cell(config.model_copy(update={"seed": 1}))], tmp_path / "cells", list[bool]()

    class WatchingProgress(RecordingProgress):
        def on_start(self, cell: Cell) -> None:
            if cell is cells[1]:
                write_fake_cell(cell, cells_dir)

        def on_event(self, cell: Cell, event: Event) -> None:
            super().on_event(cell, event)
            held.append((cells_dir / LEASES / cell.name / "1").is_file())

    progress = WatchingProgress()
    run_grid(cells, cells_dir, progress=progress)
    assert held
    assert all(held)
    assert progress.num_calls == 2
    assert progress.ended == [(cell.name, None) for cell in cells]
    assert not (cells_dir / LEASES).exists()


def test_failure_is_recorded_and_tried_again(config: RunConfig, tmp_path: Path) -> None:
    bad = Cell(config.model_copy(update={"tasks": 40}))
    good, cells_dir, progress = Cell(config), tmp_path / "cells", RecordingProgress()
    run_grid([bad, good], cells_dir, progress=progress)
    reason = read_failure(cells_dir / bad.name)
    assert reason is not None
    assert "40 tasks" in reason
    assert progress.ended == [(bad.name, reason), (good.name, None)]
    assert json.loads((cells_dir / f"{bad.name}.failed.json").read_text())["config"]["tasks"] == 40
    assert not (cells_dir / bad.name).exists()
    assert not is_done(cells_dir / bad.name, ())
    write_fake_cell(bad, cells_dir)
    run_cell(bad, cells_dir)
    assert read_failure(cells_dir / bad.name) is None


def test_parallel_cells_have_the_same_results(config: RunConfig, tmp_path: Path) -> None:
    cells = [Cell(config.model_copy(update={"seed": seed})) for seed in range(2)]
    bad = Cell(config.model_copy(update={"tasks": 40}))
    progress = RecordingProgress()
    run_grid([*cells, bad], tmp_path / "many", jobs=2, progress=progress)
    run_grid(cells, tmp_path / "one")
    for cell in cells:
        sequential, parallel = (RunResult.load(tmp_path / name / cell.name).matrix for name in ("one", "many"))
        assert sequential == parallel
    assert dict(progress.ended)[bad.name] == read_failure(tmp_path / "many" / bad.name) is not None


def test_damaged_cell_is_refused_and_not_overwritten(config: RunConfig, tmp_path: Path) -> None:
    cell = Cell(config, (count_classes,))
    write_fake_cell(Cell(config), tmp_path)
    path = tmp_path / cell.name / "results.json"
    text = path.read_text()
    path.write_text(text[:40])
    with pytest.raises(ModelFolderError, match=r"results.json' is half-written .* remove the folder and run it again"):
        run_grid([cell], tmp_path)
    path.write_text(text)
    (tmp_path / cell.name / "count_classes.json").write_text("{")
    with pytest.raises(ModelFolderError, match="remove it and run the same command again"):
        read_measure(tmp_path / cell.name, count_classes)
    (tmp_path / cell.name / "run.json").write_text("{}")
    with pytest.raises(ModelFolderError, match="another version of caprompt"):
        run_grid([cell], tmp_path)


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'jobs' must be at least 1"):
        run_grid([], tmp_path, jobs=0)


# -- killed --------------------------------------------------------------------------------------------------------------------

SCRIPT = (
    PRINTING_PROGRESS
    + """
import sys
from pathlib import Path
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell, run_grid

if __name__ == "__main__":
    data, backbone, cells_dir, jobs, seeds = sys.argv[1:]
    common = dict(dataset=data, backbone=backbone, tasks=2)
    cells = [
        Cell(resolve_config(RunConfig(**common, method=method, seed=seed, options=options)))
        for method, options in (("caprompt", {options}), ("linear", {"epochs": 3, "batch_size": 4}))
        for seed in range(int(seeds))
    ]
    run_grid(cells, Path(cells_dir), jobs=int(jobs), device="cpu", progress=PrintingProgress())
""".replace("{options}", repr({**QUICK, "epochs": 3}))
)


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "jobs", "until"), [(6, 1, (1, 2)), (4, 2, (1,))])
def test_repeatedly_killed_grid_has_the_same_results(
    tmp_path: Path, backbone: Path, cells: int, jobs: int, until: tuple[int, ...]
) -> None:
    """Each process is killed shortly after as many cells as `until` says have ended."""
    write_squares(tmp_path / "data", COLORS)
    (tmp_path / "grid.py").write_text(SCRIPT)

    def start(cells_dir: str) -> subprocess.Popen[str]:
        words = [sys.executable, "grid.py", "data", str(backbone), cells_dir, str(jobs), str(cells // 2)]
        return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    lines = start("whole").communicate(timeout=300)[0].splitlines()
    assert sum(line.startswith("ended") for line in lines) == cells
    rng, outputs = random.Random(jobs), []
    for ended in until:
        outputs.append(kill_after(start("killed"), ended, delay=rng.uniform(0.0, 0.3)))
    outputs.append(start("killed").communicate(timeout=300)[0].splitlines())

    done: set[str] = set()
    for lines in outputs:
        started = {line.split()[1] for line in lines if line.startswith("started")}
        assert not started & done, "a finished cell was run again"
        done |= {line.split()[1] for line in lines if line.startswith("ended")}
    assert outputs[-1], "the kills should have left cells to run"
    # A killed process leaves its lease in the hidden folder; nobody holds it, and the next call takes it.
    names, names_killed = ({path.name for path in (tmp_path / name).glob("[!.]*")} for name in ("whole", "killed"))
    assert names == names_killed
    assert len(names) == cells
    for name in names:
        whole, killed = (RunResult.load(tmp_path / cells_dir / name) for cells_dir in ("whole", "killed"))
        assert whole.finished
        assert killed.finished
        assert whole.matrix == killed.matrix


def kill_after(process: subprocess.Popen[str], ended: int, delay: float) -> list[str]:
    """Kill a process `delay` seconds after so many cells have ended; return the lines that it printed."""
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
def test_ctrl_c_stops_the_grid_and_its_processes(tmp_path: Path, backbone: Path) -> None:
    write_squares(tmp_path / "data", COLORS)
    (tmp_path / "grid.py").write_text(SCRIPT)
    words = [sys.executable, "grid.py", "data", str(backbone), "cells", "2", "3"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("ended"):
        assert line
    os.killpg(process.pid, signal.SIGINT)  # to the parent and its children, as a terminal does
    _, errors = process.communicate(timeout=60)
    assert errors.count("\nKeyboardInterrupt") == 1, errors  # that of the script, which does not catch it
    assert is_gone(process.pid)


def is_gone(group: int, timeout: float = 20.0) -> bool:
    """Return whether all processes of a group end in time; the resource tracker takes a moment."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
