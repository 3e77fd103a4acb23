"""Progress in the terminal: where learning is, the parts of the loss, speed and time left. Quiet where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from caprompt.callbacks.events import Consolidating, Event, ImagesChecked, LearnEnded, LearnStarted, StepEnded

__all__ = ["ProgressBar"]

REFRESH_SECONDS = 0.25  # losses live on the device; reading them more often would only slow training down


class ProgressBar:
    """A listener that draws a bar: `with Display(console) as listen: model.learn(..., listen=listen)`."""

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
        self.began = self.shown = 0.0
        self.images = 0

    def __enter__(self) -> ProgressBar:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, ImagesChecked):
            self._reading(event)
        elif isinstance(event, LearnStarted):
            names = ", ".join(event.new_classes or event.known_classes)
            total, done = event.images * event.epochs, event.images * event.first_epoch
            self._start(f"task {event.task}: {names if len(names) < 40 else names[:37] + '...'}", total, done)
        elif isinstance(event, StepEnded):
            self._step(event)
        elif isinstance(event, Consolidating) and self.bar is not None:
            self.bars.update(self.bar, note="class statistics and alignment")
        elif isinstance(event, LearnEnded):
            self._clear()

    def _start(self, description: str, total: int, done: int = 0) -> None:
        self._clear()
        self.bar = self.bars.add_task(description, total=total, completed=done, note="")
        self.began, self.images = time.perf_counter(), 0

    def _clear(self) -> None:
        if self.bar is not None:
            self.bars.remove_task(self.bar)
        self.bar = None

    def _reading(self, event: ImagesChecked) -> None:
        if event.done == 1:
            self._start("reading pictures", event.total)
        if self.bar is not None:
            self.bars.update(self.bar, completed=event.done)

    def _step(self, event: StepEnded) -> None:
        self.images += event.images
        if self.bar is None:
            return
        self.bars.advance(self.bar, event.images)
        now = time.perf_counter()
        if not self.bars.disable and now - self.shown > REFRESH_SECONDS:
            self.shown = now
            losses = "  ".join(f"{name} {float(loss):.3f}" for name, loss in event.losses.items())
            self.bars.update(self.bar, note=f"epoch {event.epoch + 1}  {losses}  {self.images / (now - self.began):.0f} images/s")
