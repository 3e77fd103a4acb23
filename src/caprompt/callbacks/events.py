"""What happens while a model learns, told to whoever listens: the progress bar, the log, a notebook.

A listener is a plain function of one event. Events carry facts, never objects to be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    """A picture of the source has been decoded and checked."""

    done: int
    total: int


@dataclass(frozen=True)
class LearnStarted:
    """A call of `learn` starts to train."""

    task: int  # counted from 1
    new_classes: tuple[str, ...]
    known_classes: tuple[str, ...]
    images: int  # per epoch
    epochs: int
    first_epoch: int  # above 0 where a stopped call is continued


@dataclass(frozen=True)
class StepEnded:
    """One training step. The losses are still on the device: reading them is the listener's choice, not every step's cost."""

    epoch: int
    images: int
    losses: Mapping[str, Tensor]


@dataclass(frozen=True)
class EpochEnded:
    """One epoch, with the mean of each part of the loss."""

    epoch: int
    epochs: int
    losses: Mapping[str, float]
    images: int
    seconds: float

    def figures(self) -> dict[str, Any]:
        """What a model's history keeps of it."""
        losses = {name: round(value, 6) for name, value in self.losses.items()}
        return {"epoch": self.epoch, "losses": losses, "images": self.images, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class Consolidating:
    """Training is over; what the images tell about their classes is gathered, and whoever answers is brought up to it."""


@dataclass(frozen=True)
class LearnEnded:
    """The model has learned the call's images."""

    classes: int
    seconds: float


@dataclass(frozen=True)
class TaskEvaluated:
    """A run has tested its model after a task: the accuracy matrix so far, in percent."""

    matrix: Matrix


Event = ImagesChecked | LearnStarted | StepEnded | EpochEnded | Consolidating | LearnEnded | TaskEvaluated
Callback = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """The listener that says nothing."""


def compose(*listeners: Callback) -> Callback:
    """One listener that tells several, in their order."""

    def tell(event: Event) -> None:
        for listen in listeners:
            listen(event)

    return tell
