"""Progress bar of training, in a terminal or a notebook: position, loss terms, images per second, time left."""

from __future__ import annotations

import io
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from caprompt.callbacks.events import Consolidating, Event, ImagesChecked, LearnEnded, LearnStarted, StepEnded

__all__ = ["NotebookBar", "ProgressBar", "QuietProgress"]

NOTEBOOK_COLUMNS = 100
REFRESH_SECONDS = 0.25  # losses are on the device, and reading them waits for it


class QuietProgress(Progress):
    """Bars that print nothing at all if they are disabled; older releases of rich end them with an empty line."""

    def stop(self) -> None:
        """Remove the bars."""
        if not self.disable:
            super().stop()


class ProgressBar:
    """A callback that draws a bar: `with ProgressBar(console) as bar: model.learn(..., callbacks=bar)`.

    It is silent without a terminal.
    """

    def __init__(self, console: Console, is_visible: bool | None = None) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeRemainingColumn(compact=True),
        )
        visible = console.is_terminal if is_visible is None else is_visible
        self.bars = QuietProgress(*columns, console=console, disable=not visible, transient=True)
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


class NotebookBar(ProgressBar):
    """A callback that draws the bar below the cell of a notebook that is running, and removes it at the end."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(Console(file=self.text, width=NOTEBOOK_COLUMNS, color_system=None, force_jupyter=False), is_visible=True)
        self.drawn_at = 0.0

    def __enter__(self) -> NotebookBar:
        from IPython.display import display

        self.cell = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cell.update({"text/plain": ""}, raw=True)

    def __call__(self, event: Event) -> None:
        """Update the bar, and draw it if it was not drawn just now."""
        super().__call__(event)
        now = time.perf_counter()
        if now - self.drawn_at > REFRESH_SECONDS or isinstance(event, (Consolidating, LearnEnded)):
            self.drawn_at = now
            self.text.seek(0)
            self.text.truncate()
            self.bars.console.print(self.bars.get_renderable())
            self.cell.update({"text/plain": self.text.getvalue().rstrip()}, raw=True)
