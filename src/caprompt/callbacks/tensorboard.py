"""TensorBoard: the losses of every epoch and the figures of every test, as `caprompt run --tensorboard` writes them."""

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
    """A listener that writes event files for TensorBoard; nothing is written before the first epoch has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.task = 0
        self.writer: SummaryWriter | None = None
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise OptionError("--tensorboard needs the package tensorboard: pip install 'caprompt[track]'") from None

    def __call__(self, event: Event) -> None:
        """Write one event, if it has figures."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            for name, value in event.losses.items():
                self._scalar(f"task {self.task}/loss {name}", value, event.epoch + 1)
            self._scalar(f"task {self.task}/images per second", event.images / max(event.seconds, 1e-9), event.epoch + 1)
        elif isinstance(event, TaskEvaluated):
            tasks = len(event.matrix)
            self._scalar("test/ACC", metrics.average_accuracy(event.matrix), tasks)
            self._scalar("test/AF", metrics.forgetting(event.matrix), tasks)
            for task, accuracy in enumerate(event.matrix[-1], start=1):
                self._scalar(f"test/accuracy on task {task}", accuracy, tasks)

    def _scalar(self, name: str, value: float, step: int) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder))
        self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a kill should lose nothing
