from __future__ import annotations

import io
from pathlib import Path

from grids import write_fake_cell
from rich.console import Console

from caprompt.callbacks.events import EpochEnded, LearnStarted
from caprompt.cli.grid_progress import GridProgressBar
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell


def test_prints_a_line_per_cell_and_the_time_left(tmp_path: Path) -> None:
    cells = [Cell(resolve_config(RunConfig(seed=seed, tasks=3))) for seed in range(2)]
    write_fake_cell(cells[0], tmp_path)
    console = Console(file=io.StringIO(), record=True, width=200, force_terminal=True)
    with GridProgressBar(console, tmp_path, total=5, done=3) as progress:
        progress.on_start(cells[0])
        progress.on_event(cells[0], LearnStarted(2, (), (), images=10, epochs=4, first_epoch=0))
        progress.on_event(cells[0], EpochEnded(epoch=1, epochs=4, losses={}, images=10, seconds=1))
        assert progress.fraction == 0.5
        assert "left" in progress.bars.tasks[0].fields["left"]
        progress.on_end(cells[0], None)
        progress.on_start(cells[1])
        progress.on_end(cells[1], "no room; go on with skip_bad=True")
        assert progress.bars.tasks[0].completed == 5
    text = console.export_text()
    assert f"[4/5] {cells[0].name}: ACC 68.00 (0 s)" in text
    assert f"[5/5] {cells[1].name}: failed, no room; go on with --skip-bad" in text


def test_prints_lines_only_without_a_terminal(tmp_path: Path) -> None:
    cell = Cell(resolve_config(RunConfig(tasks=3)))
    write_fake_cell(cell, tmp_path)
    text = io.StringIO()
    with GridProgressBar(Console(file=text, width=200), tmp_path, total=1, done=0) as progress:
        progress.on_start(cell)
        progress.on_end(cell, None)
    assert text.getvalue() == f"[1/1] {cell.name}: ACC 68.00 (0 s)\n"
