"""How a grid of experiments goes on, in the terminal: a bar over all cells with the time left, and a line for each that ends.

Without a terminal there is no bar, but still the lines, so that a log tells how far a long night got.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from caprompt.callbacks.events import EpochEnded, Event, LearnStarted
from caprompt.experiments.grid import Cell
from caprompt.experiments.run_folder import RunResult

__all__ = ["GridProgressBar", "time_left"]


class GridProgressBar:
    """A watcher of `run_grid`; `done` of the `total` cells were there before."""

    def __init__(self, console: Console, home: Path, total: int, done: int) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self.console, self.home = console, home
        self.total, self.done, self.before = total, done, done
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.bar = self.bars.add_task("cells", total=total, completed=done, note="", left="")
        self.began_at: dict[str, float] = {}
        self.started = time.perf_counter()
        self.share, self.task, self.tasks = 0.0, 1, 1  # how much of the cell in this process is over

    def __enter__(self) -> GridProgressBar:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def began(self, cell: Cell) -> None:
        """A cell is being run."""
        self.began_at[cell.name] = time.perf_counter()
        self.share, self.tasks = 0.0, _number_of_tasks(cell)
        self.bars.update(self.bar, note=cell.name)

    def heard(self, cell: Cell, event: Event) -> None:
        """Epochs tell how far the cell is."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            self.share = min(1.0, (self.task - 1 + (event.epoch + 1) / event.epochs) / self.tasks)
            self._estimate()

    def ended(self, cell: Cell, reason: str | None) -> None:
        """One line says what came out."""
        self.done, self.share = self.done + 1, 0.0
        seconds = time.perf_counter() - self.began_at.pop(cell.name)
        found = f"failed, {reason}" if reason else f"ACC {RunResult.load(self.home / cell.name).summary()['ACC']:.2f}"
        self.console.print(f"[{self.done}/{self.total}] {cell.name}: {found} ({seconds:.0f} s)", soft_wrap=True)
        self.bars.update(self.bar, completed=self.done)
        self._estimate()

    def _estimate(self) -> None:
        passed = time.perf_counter() - self.started
        left = time_left(passed, self.done - self.before + self.share, self.total - self.done - self.share)
        self.bars.update(self.bar, left=left)


def time_left(seconds: float, cells: float, left: float) -> str:
    """In words, if so many cells took so many seconds and so many are left.

    >>> time_left(60, 2, 10), time_left(50, 0.5, 100), time_left(10, 0, 5)
    ('5 min left', '2 h 47 min left', '')
    """
    if cells <= 0:
        return ""
    minutes = round(seconds / cells * left / 60)
    return f"{minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"{minutes} min left"


def _number_of_tasks(cell: Cell) -> int:
    tasks = cell.config.tasks
    return 1 if cell.config.joint or tasks is None else tasks if isinstance(tasks, int) else len(tasks)
