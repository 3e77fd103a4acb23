"""Training events and the callbacks that consume them: progress bar, metrics log, experiment trackers, accuracy curve.

A callback is a plain function of one event. The callback classes are imported when first used, because they need rich or
a tracking library.

>>> from caprompt.callbacks import LearnEnded, compose
>>> compose(print, lambda event: print(event.classes))(LearnEnded(classes=3, seconds=1.0))
LearnEnded(classes=3, seconds=1.0)
3
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caprompt.callbacks.events import (
    Callback,
    Consolidating,
    EpochEnded,
    Event,
    ImagesChecked,
    LearnEnded,
    LearnStarted,
    StepEnded,
    TaskEvaluated,
    compose,
    ignore_event,
)

if TYPE_CHECKING:
    from caprompt.callbacks.metrics_log import MetricsLog
    from caprompt.callbacks.progress_bar import ProgressBar
    from caprompt.callbacks.tensorboard import TensorBoardWriter
    from caprompt.callbacks.terminal_curve import TerminalCurve
    from caprompt.callbacks.tracking import make_tracker

__all__ = [
    "Callback",
    "Consolidating",
    "EpochEnded",
    "Event",
    "ImagesChecked",
    "LearnEnded",
    "LearnStarted",
    "MetricsLog",
    "ProgressBar",
    "StepEnded",
    "TaskEvaluated",
    "TensorBoardWriter",
    "TerminalCurve",
    "compose",
    "ignore_event",
    "make_tracker",
]

_LAZY = {
    "MetricsLog": "caprompt.callbacks.metrics_log",
    "ProgressBar": "caprompt.callbacks.progress_bar",
    "TensorBoardWriter": "caprompt.callbacks.tensorboard",
    "TerminalCurve": "caprompt.callbacks.terminal_curve",
    "make_tracker": "caprompt.callbacks.tracking",
}


def __getattr__(name: str) -> Any:
    """Import a callback when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'caprompt.callbacks' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)
