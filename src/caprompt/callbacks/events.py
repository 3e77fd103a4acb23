"""Events that training emits, for callbacks such as the progress bar, the metrics log or a notebook.

A callback is a plain function of one event. Events are immutable records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caprompt import metrics
from caprompt.metrics import Matrix

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Callback",
    "Consolidating",
    "EpochEnded",
    "Event",
    "ImagesChecked",
    "LearnEnded",
    "LearnStarted",
    "StepEnded",
    "TaskEvaluated",
    "compose",
    "ignore_event",
]


@dataclass(frozen=True)
class ImagesChecked:
    """An image of the source was decoded and checked."""

    done: int
    total: int


@dataclass(frozen=True)
class LearnStarted:
    """A call of `learn` starts training."""

    task: int  # counted from 1
    new_classes: tuple[str, ...]
    known_classes: tuple[str, ...]
    images: int  # per epoch
    epochs: int
    first_epoch: int  # above 0 when a stopped call is resumed
    effort: str = ""  # what was chosen for this number of images, if anything was


@dataclass(frozen=True)
class StepEnded:
    """A training step ended. The losses are still on the device, so that only a callback that reads them pays for the sync."""

    epoch: int
    images: int
    losses: Mapping[str, Tensor]


@dataclass(frozen=True)
class EpochEnded:
    """An epoch ended, with the mean of each term of the loss."""

    epoch: int
    epochs: int
    losses: Mapping[str, float]
    images: int
    seconds: float

    def as_record(self) -> dict[str, Any]:
        """Return the entry of a model's history and of `metrics.jsonl`."""
        losses = {name: round(value, 6) for name, value in self.losses.items()}
        return {"epoch": self.epoch, "losses": losses, "images": self.images, "seconds": round(self.seconds, 3)}

    def as_scalars(self, task: int) -> dict[str, float]:
        """Return the curves of a tracker that this epoch of a task has a value of.

        >>> EpochEnded(epoch=0, epochs=2, losses={"ce": 0.5}, images=8, seconds=2.0).as_scalars(task=1)
        {'task 1/loss ce': 0.5, 'task 1/images per second': 4.0}
        """
        losses = {f"task {task}/loss {name}": value for name, value in self.losses.items()}
        return {**losses, f"task {task}/images per second": self.images / max(self.seconds, 1e-9)}


@dataclass(frozen=True)
class Consolidating:
    """Training ended; class statistics are computed and the classifier is fitted to them."""


@dataclass(frozen=True)
class LearnEnded:
    """A call of `learn` ended."""

    classes: int
    seconds: float


@dataclass(frozen=True)
class TaskEvaluated:
    """A run evaluated its model after a task."""

    matrix: Matrix  # the accuracy matrix so far, in percent

    def as_scalars(self) -> dict[str, float]:
        """Return the curves of a tracker that this evaluation has a value of: two metrics, and the last row of the matrix.

        >>> TaskEvaluated([[90.0], [80.0, 100.0]]).as_scalars()
        {'test/ACC': 90.0, 'test/AF': 10.0, 'test/accuracy on task 1': 80.0, 'test/accuracy on task 2': 100.0}
        """
        row = {f"test/accuracy on task {task}": accuracy for task, accuracy in enumerate(self.matrix[-1], start=1)}
        return {"test/ACC": metrics.average_accuracy(self.matrix), "test/AF": metrics.forgetting(self.matrix), **row}


Event = ImagesChecked | LearnStarted | StepEnded | EpochEnded | Consolidating | LearnEnded | TaskEvaluated
Callback = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Do nothing: the default callback."""


def compose(*callbacks: Callback) -> Callback:
    """Return a callback that calls several, in order."""

    def call_all(event: Event) -> None:
        for callback in callbacks:
            callback(event)

    return call_all
