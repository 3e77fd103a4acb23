"""`metrics.jsonl` of a run folder, written while it trains: a line per epoch, and one per test after a task.

    {"task": 1, "epoch": 0, "losses": {"ce": 0.71}, "images": 288, "seconds": 2.1}
    {"task": 1, "ACC": 98.6, "AF": 0.0, "accuracies": [98.6]}

Every line is on the disk before training goes on, so that a kill loses none. A run that goes on begins with the lines of what it
goes on from: nothing is missing, and nothing stands twice.
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
    """A listener that writes down epochs and tests, beginning with those of earlier sittings."""

    def __init__(self, path: Path, epochs: Iterable[Mapping[str, Any]], matrix: Matrix) -> None:
        self.path = path
        self.task = 0
        lines = [{"task": record["call"] + 1, **{key: record[key] for key in record if key != "call"}} for record in epochs]
        lines += [evaluation_record(matrix[: task + 1]) for task in range(len(matrix))]
        # A stable sort: the epochs of a task, then its test.
        files.write_bytes(path, "".join(map(_line, sorted(lines, key=lambda line: int(line["task"])))).encode())

    def __call__(self, event: Event) -> None:
        """Write down one event, if it is worth a line."""
        if isinstance(event, LearnStarted):
            self.task = event.task
        elif isinstance(event, EpochEnded):
            self._append({"task": self.task, **event.figures()})
        elif isinstance(event, TaskEvaluated):
            self._append(evaluation_record(event.matrix))

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(line))
            file.flush()
            os.fsync(file.fileno())


def evaluation_record(matrix: Matrix) -> dict[str, Any]:
    """The line of the test after the last task of an accuracy matrix.

    >>> evaluation_record([[90.0], [80.0, 100.0]])
    {'task': 2, 'ACC': 90.0, 'AF': 10.0, 'accuracies': [80.0, 100.0]}
    """
    figures = {"ACC": metrics.average_accuracy(matrix), "AF": metrics.forgetting(matrix)}
    return {"task": len(matrix), **{name: round(value, 4) for name, value in figures.items()}, "accuracies": list(matrix[-1])}


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value) + "\n"
