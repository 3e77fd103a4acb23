"""Progress of a grid of experiments: a bar over all cells with the time left, and a line for each cell that ends.

Without a terminal only the lines are printed, so that a log file shows the progress too.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from caprompt.callbacks.events import EpochEnded, Event, LearnStarted
from caprompt.callbacks.progress_bar import QuietProgress
from caprompt.cli.console import to_flags
from caprompt.experiments.grid import Cell
from caprompt.experiments.run_folder import RunResult

__all__ = ["GridProgressBar", "format_time_left"]


class GridProgressBar:
    """Progress callback of `run_grid`; `done` of the `total` cells were finished before."""

    def __init__(self, console: Console, folder: Path, total: int, done: int) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self.console, self.folder = console, folder
        self.total, self.done, self.done_before = total, done, done
        self.bars = QuietProgress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.bar = self.bars.add_task("cells", total=total, completed=done, note="", left="")
        self.start_times: dict[str, float] = {}
        self.started_at = time.perf_counter()
        self.fraction, self.task, self.num_tasks = 0.0, 1, 1  # of the cell that runs in this process

    def __enter__(self) -> GridProgressBar:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def on_start(self, cell: Cell) -> None:
        """Show the cell that started."""
        self.start_times[cell.name] = time.perf_counter()
        self.fraction, self.num_tasks = 0.0, _count_tasks(cell)
        self.bars.update(self.bar, note=cell.name)

    def on_event(self, cell: Cell, event: Event) -> None:
        """Update the time left after each epoch."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            self.fraction = min(1.0, (self.task - 1 + (event.epoch + 1) / event.epochs) / self.num_tasks)
            self._update_time_left()

    def on_end(self, cell: Cell, reason: str | None) -> None:
        """Print a line with the accuracy of the cell, or with the reason of its failure."""
        self.done, self.fraction = self.done + 1, 0.0
        seconds = time.perf_counter() - self.start_times.pop(cell.name)
        outcome = f"failed, {to_flags(reason)}" if reason else self._format_accuracy(cell)
        self.console.print(f"[{self.done}/{self.total}] {cell.name}: {outcome} ({seconds:.0f} s)", soft_wrap=True)
        self.bars.update(self.bar, completed=self.done)
        self._update_time_left()

    def _format_accuracy(self, cell: Cell) -> str:
        return f"ACC {RunResult.load(self.folder / cell.name).summary()['ACC']:.2f}"

    def _update_time_left(self) -> None:
        elapsed = time.perf_counter() - self.started_at
        left = format_time_left(elapsed, self.done - self.done_before + self.fraction, self.total - self.done - self.fraction)
        self.bars.update(self.bar, left=left)


def format_time_left(seconds: float, cells: float, left: float) -> str:
    """Return the time that `left` cells will take if `cells` cells took `seconds`.

    >>> format_time_left(60, 2, 10), format_time_left(50, 0.5, 100), format_time_left(10, 0, 5)
    ('5 min left', '2 h 47 min left', '')
    """
    if cells <= 0:
        return ""
    minutes = round(seconds / cells * left / 60)
    return f"{minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"{minutes} min left"


def _count_tasks(cell: Cell) -> int:
    tasks = cell.config.tasks
    return 1 if cell.config.joint or tasks is None else tasks if isinstance(tasks, int) else len(tasks)
