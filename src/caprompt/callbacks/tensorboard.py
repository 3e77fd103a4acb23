"""TensorBoard writer: losses of every epoch and metrics of every evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from caprompt import metrics
from caprompt.callbacks.events import EpochEnded, Event, LearnStarted, TaskEvaluated
from caprompt.errors import OptionError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """A callback that writes TensorBoard event files; nothing is written before the end of the first epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = 0
        self.writer: SummaryWriter | None = None
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise OptionError("TensorBoard logs need the package tensorboard: pip install 'caprompt[track]'") from None

    def __call__(self, event: Event) -> None:
        """Write the scalars of an epoch or an evaluation."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            for name, value in event.losses.items():
                self._add_scalar(f"task {self.task}/loss {name}", value, event.epoch + 1)
            self._add_scalar(f"task {self.task}/images per second", event.images / max(event.seconds, 1e-9), event.epoch + 1)
        elif isinstance(event, TaskEvaluated):
            tasks = len(event.matrix)
            self._add_scalar("test/ACC", metrics.average_accuracy(event.matrix), tasks)
            self._add_scalar("test/AF", metrics.forgetting(event.matrix), tasks)
            for task, accuracy in enumerate(event.matrix[-1], start=1):
                self._add_scalar(f"test/accuracy on task {task}", accuracy, tasks)

    def _add_scalar(self, name: str, value: float, step: int) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder))
        self.writer.add_scalar(name, value, step)
        self.writer.flush()  # so that a kill loses nothing
