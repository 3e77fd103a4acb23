"""The panels of a run or of a taught model: what each shows, and the template that shows it.

To add a panel, write a function from a run to the variables of its template, or None where it has nothing to show, a template in
`templates/panels`, and a line in `PANELS` (of a run) or `MODEL_PANELS` (of a model), or in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from caprompt import metrics
from caprompt.report import model_tables, tables
from caprompt.report.charts import Series, draw_legend, draw_line_chart, draw_reliability_diagram
from caprompt.report.confusion import make_confusion_table
from caprompt.report.mistakes import find_confused_pairs, find_worst_mistakes
from caprompt.report.model_data import ModelRecord
from caprompt.report.run_data import RunRecord, Tested
from caprompt.report.task_weights import CycleMetrics, summarize_task_weights
from caprompt.report.thumbnails import Thumbnails

__all__ = ["MODEL_PANELS", "PANELS", "Panel", "list_shown_images", "make_panels"]

NUM_PAIRS, NUM_WORST = 10, 12
T = TypeVar("T")


@dataclass(frozen=True)
class Panel(Generic[T]):
    """A section of the report about one run, or about a model."""

    name: str  # anchor of the section, and name of its template
    title: str
    make: Callable[[T, Thumbnails], dict[str, Any] | None]


def make_panels(tested: T, thumbnails: Thumbnails, panels: Sequence[Panel[T]]) -> list[dict[str, Any]]:
    """Make the template variables of every panel that has something to show for a run or a model."""
    views = [(panel, panel.make(tested, thumbnails)) for panel in panels]
    return [
        {"name": panel.name, "title": panel.title, "template": f"panels/{panel.name}.html", **view}
        for panel, view in views
        if view is not None
    ]


def list_shown_images(tested: Tested) -> list[int]:
    """Return the indices of the test images that the panels of a run or a model show."""
    if tested.predictions is None:
        return []
    pairs = find_confused_pairs(tested.predictions, NUM_PAIRS)
    mistakes = [*find_worst_mistakes(tested.predictions, NUM_WORST), *(mistake for pair in pairs for mistake in pair.examples)]
    return [mistake.image for mistake in mistakes]


def _make_matrix(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    results, last = run.results, run.results.rows[-1]
    intervals = [
        metrics.format_interval(metrics.compute_interval(round(accuracy * count / 100), count))
        for accuracy, count in zip(last.accuracies, last.images, strict=True)
    ]
    tasks = list(zip(results.tasks, last.images, intervals, strict=True))
    return {"matrix": results.matrix, "tasks": tasks, "joint": results.joint}


def _make_task_weights(tested: Tested, thumbnails: Thumbnails) -> dict[str, Any] | None:
    cycles = summarize_task_weights(tested.predictions, tested.tasks) if tested.predictions else []
    if not cycles:
        return None
    curve = _make_cycle_curve(cycles)
    return {"cycles": cycles, "cycle_curve": curve, **({"title": "Task weights by cycle"} if curve else {})}


def _make_cycle_curve(cycles: Sequence[CycleMetrics]) -> dict[str, Any] | None:
    """Make the chart of task weights and accuracy over the number of cycles."""
    if len(cycles) < 2:
        return None
    series = [
        Series("weight of the true task", [each.true_task_weight for each in cycles]),
        Series("accuracy", [each.accuracy for each in cycles]),
    ]
    chart = draw_line_chart(series, "Weight of the true task, and accuracy, by cycles", "cycles", "mean over test images (%)")
    return {"chart": chart, "legend": draw_legend(series)}


def _make_confusion(tested: Tested, thumbnails: Thumbnails) -> dict[str, Any] | None:
    predictions = tested.predictions
    if predictions is None or len(predictions.classes) < 2:
        return None
    return {"confusion": make_confusion_table(predictions, tested.tasks)}


def _make_mistakes(tested: Tested, thumbnails: Thumbnails) -> dict[str, Any] | None:
    predictions = tested.predictions
    pairs = find_confused_pairs(predictions, NUM_PAIRS) if predictions else []
    if predictions is None or not pairs:
        return None
    worst = find_worst_mistakes(predictions, NUM_WORST)
    return {
        "num_mistakes": sum((predictions.true != predictions.answer).tolist()),
        "num_images": len(predictions.true),
        "confused_pairs": pairs,
        "worst_mistakes": [mistake for mistake in worst if mistake.image in thumbnails.urls],
        "image_urls": thumbnails.urls,
        "file_names": thumbnails.names,
    }


def _make_classes(tested: Tested, thumbnails: Thumbnails) -> dict[str, Any] | None:
    return {"classes": tables.make_classes_table(tested)} if tested.predictions else None


def _make_reliability(tested: Tested, thumbnails: Thumbnails) -> dict[str, Any] | None:
    predictions = tested.predictions
    if predictions is None:
        return None
    bins = metrics.compute_reliability(predictions.score.tolist(), (predictions.true == predictions.answer).tolist())
    return {
        "calibration_error": metrics.compute_calibration_error(bins),
        "diagram": draw_reliability_diagram(bins, "Accuracy by score, in percent"),
        "bins": tables.make_reliability_table(bins),
    }


def _make_audit(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    return {"audit": run.audit, "audit_table": tables.make_audit_table(run.audit) if run.audit else None}


def _make_learned(model: ModelRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    return {"learned": model_tables.make_learned_table(model), "lessons": model_tables.make_lessons_table(model)}


def _make_model_classes(model: ModelRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    return {"classes": model_tables.make_worst_classes_table(model)}


PANELS: tuple[Panel[RunRecord], ...] = (
    Panel("matrix", "Accuracy matrix", _make_matrix),
    Panel("weights", "Task weights", _make_task_weights),
    Panel("mistakes", "Mistakes", _make_mistakes),
    Panel("confusion", "Confusion matrix", _make_confusion),
    Panel("classes", "Classes", _make_classes),
    Panel("reliability", "Reliability of scores", _make_reliability),
    Panel("audit", "Audit", _make_audit),
)
MODEL_PANELS: tuple[Panel[ModelRecord], ...] = (
    Panel("learned", "What it has learned", _make_learned),
    Panel("classes", "Classes", _make_model_classes),
    Panel("mistakes", "Mistakes", _make_mistakes),
    Panel("confusion", "Confusion matrix", _make_confusion),
    Panel("reliability", "Reliability of scores", _make_reliability),
    Panel("weights", "Task weights", _make_task_weights),
)
