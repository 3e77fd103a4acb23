"""Progress bar of training: position, loss terms, images per second, time left. Silent without a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from caprompt.callbacks.events import Consolidating, Event, ImagesChecked, LearnEnded, LearnStarted, StepEnded

__all__ = ["ProgressBar"]

REFRESH_SECONDS = 0.25  # losses are on the device, and reading them waits for it


class ProgressBar:
    """A callback that draws a bar: `with ProgressBar(console) as bar: model.learn(..., callbacks=bar)`."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeRemainingColumn(compact=True),
        )
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.bar: TaskID | None = None
        self.started_at = self.updated_at = 0.0
        self.images = 0

    def __enter__(self) -> ProgressBar:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        """Update the bar."""
        if isinstance(event, ImagesChecked):
            self._update_reading(event)
        elif isinstance(event, LearnStarted):
            names = ", ".join(event.new_classes or event.known_classes)
            total, done = event.images * event.epochs, event.images * event.first_epoch
            self._start(f"task {event.task}: {names if len(names) < 40 else names[:37] + '...'}", total, done)
        elif isinstance(event, StepEnded):
            self._advance(event)
        elif isinstance(event, Consolidating) and self.bar is not None:
            self.bars.update(self.bar, note="class statistics and alignment")
        elif isinstance(event, LearnEnded):
            self._clear()

    def _start(self, description: str, total: int, done: int = 0) -> None:
        self._clear()
        self.bar = self.bars.add_task(description, total=total, completed=done, note="")
        self.started_at, self.images = time.perf_counter(), 0

    def _clear(self) -> None:
        if self.bar is not None:
            self.bars.remove_task(self.bar)
        self.bar = None

    def _update_reading(self, event: ImagesChecked) -> None:
        if event.done == 1:
            self._start("reading images", event.total)
        if self.bar is not None:
            self.bars.update(self.bar, completed=event.done)

    def _advance(self, event: StepEnded) -> None:
        self.images += event.images
        if self.bar is None:
            return
        self.bars.advance(self.bar, event.images)
        now = time.perf_counter()
        if not self.bars.disable and now - self.updated_at > REFRESH_SECONDS:
            self.updated_at = now
            losses = "  ".join(f"{name} {float(loss):.3f}" for name, loss in event.losses.items())
            self.bars.update(
                self.bar, note=f"epoch {event.epoch + 1}  {losses}  {self.images / (now - self.started_at):.0f} images/s"
            )
