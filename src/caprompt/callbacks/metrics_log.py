"""Writer of a run folder's `metrics.jsonl`: a line per epoch, and one per evaluation after a task.

    {"task": 1, "epoch": 0, "losses": {"ce": 0.71}, "images": 288, "seconds": 2.1}
    {"task": 1, "ACC": 98.6, "AF": 0.0, "accuracies": [98.6]}

Every line is synced to disk before training goes on, so that a kill loses none. A resumed run first rewrites the lines
of the epochs and evaluations that it resumes from, so that no line is missing or repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from caprompt import metrics
from caprompt.callbacks.events import EpochEnded, Event, LearnStarted, TaskEvaluated
from caprompt.metrics import Matrix
from caprompt.utils import files

__all__ = ["LOG", "MetricsLog"]

LOG = "metrics.jsonl"


class MetricsLog:
    """A callback that logs epochs and evaluations, starting with those before a resume."""

    def __init__(self, path: Path, epochs: Iterable[Mapping[str, Any]], matrix: Matrix) -> None:
        self.path = path
        self.task = 0
        records = [{"task": epoch["call"] + 1, **{key: epoch[key] for key in epoch if key != "call"}} for epoch in epochs]
        records += [make_evaluation_record(matrix[: task + 1]) for task in range(len(matrix))]
        records.sort(key=lambda record: int(record["task"]))  # stable: the epochs of a task, then its evaluation
        files.write_bytes(path, "".join(map(_encode_line, records)).encode())

    def __call__(self, event: Event) -> None:
        """Append a line if the event is the end of an epoch or an evaluation."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            self._append({"task": self.task, **event.as_record()})
        elif isinstance(event, TaskEvaluated):
            self._append(make_evaluation_record(event.matrix))

    def _append(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_encode_line(record))
            file.flush()
            os.fsync(file.fileno())


def make_evaluation_record(matrix: Matrix) -> dict[str, Any]:
    """Return the record of the evaluation after the last task of an accuracy matrix.

    >>> make_evaluation_record([[90.0], [80.0, 100.0]])
    {'task': 2, 'ACC': 90.0, 'AF': 10.0, 'accuracies': [80.0, 100.0]}
    """
    values = {"ACC": metrics.average_accuracy(matrix), "AF": metrics.forgetting(matrix)}
    return {"task": len(matrix), **{name: round(value, 4) for name, value in values.items()}, "accuracies": list(matrix[-1])}


def _encode_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"
