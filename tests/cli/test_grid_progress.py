from __future__ import annotations

import io
from pathlib import Path

from grids import pretend
from rich.console import Console

from caprompt.callbacks.events import EpochEnded, LearnStarted
from caprompt.cli.grid_progress import GridProgressBar
from caprompt.experiments.config import RunConfig, resolve_config
from caprompt.experiments.grid import Cell


def test_a_line_for_each_cell_and_the_time_left(tmp_path: Path) -> None:
    cells = [Cell(resolve_config(RunConfig(seed=seed, tasks=3))) for seed in range(2)]
    pretend(cells[0], tmp_path)
    console = Console(file=io.StringIO(), record=True, width=200, force_terminal=True)
    with GridProgressBar(console, tmp_path, total=5, done=3) as watch:
        watch.began(cells[0])
        watch.heard(cells[0], LearnStarted(2, (), (), images=10, epochs=4, first_epoch=0))
        watch.heard(cells[0], EpochEnded(epoch=1, epochs=4, losses={}, images=10, seconds=1))
        assert watch.share == 0.5
        assert "left" in watch.bars.tasks[0].fields["left"]
        watch.ended(cells[0], None)
        watch.began(cells[1])
        watch.ended(cells[1], "no room")
        assert watch.bars.tasks[0].completed == 5
    shown = console.export_text()
    assert f"[4/5] {cells[0].name}: ACC 68.00 (0 s)" in shown
    assert f"[5/5] {cells[1].name}: failed, no room" in shown


def test_a_log_gets_the_lines_only(tmp_path: Path) -> None:
    cell = Cell(resolve_config(RunConfig(tasks=3)))
    pretend(cell, tmp_path)
    text = io.StringIO()
    with GridProgressBar(Console(file=text, width=200), tmp_path, total=1, done=0) as watch:
        watch.began(cell)
        watch.ended(cell, None)
    assert text.getvalue() == f"[1/1] {cell.name}: ACC 68.00 (0 s)\n"
