"""The panels of a run: what each shows, and the template that shows it.

To add a panel, write a function from a run to the variables of its template, or None where it has nothing to show, a template in
`templates/panels`, and a line in `PANELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caprompt.report import tables
from caprompt.report.charts import Series, draw_legend, draw_line_chart
from caprompt.report.mistakes import find_confused_pairs, find_worst_mistakes
from caprompt.report.run_data import RunRecord
from caprompt.report.task_weights import CycleMetrics, summarize_task_weights
from caprompt.report.thumbnails import Thumbnails

__all__ = ["PANELS", "Panel", "list_shown_images", "make_panels"]

NUM_PAIRS, NUM_WORST = 10, 12


@dataclass(frozen=True)
class Panel:
    """A section of the report about one run."""

    name: str  # anchor of the section, and name of its template
    title: str
    make: Callable[[RunRecord, Thumbnails], dict[str, Any] | None]


def make_panels(run: RunRecord, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Make the template variables of every panel that has something to show for a run."""
    views = [(panel, panel.make(run, thumbnails)) for panel in PANELS]
    return [
        {"name": panel.name, "title": panel.title, "template": f"panels/{panel.name}.html", **view}
        for panel, view in views
        if view is not None
    ]


def list_shown_images(run: RunRecord) -> list[int]:
    """Return the indices of the test images that the panels of a run show."""
    if run.predictions is None:
        return []
    pairs = find_confused_pairs(run.predictions, NUM_PAIRS)
    mistakes = [*find_worst_mistakes(run.predictions, NUM_WORST), *(mistake for pair in pairs for mistake in pair.examples)]
    return [mistake.image for mistake in mistakes]


def _make_matrix(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    results = run.results
    return {"matrix": results.matrix, "tasks": list(enumerate(results.tasks, start=1)), "joint": results.joint}


def _make_task_weights(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any] | None:
    cycles = summarize_task_weights(run.predictions, run.results.tasks) if run.predictions else []
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


def _make_mistakes(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any] | None:
    predictions = run.predictions
    pairs = find_confused_pairs(predictions, NUM_PAIRS) if predictions else []
    if predictions is None or not pairs:
        return None
    worst = find_worst_mistakes(predictions, NUM_WORST)
    return {
        "num_mistakes": sum((predictions.true != predictions.answer).tolist()),
        "num_images": run.plan["test"]["images"],
        "confused_pairs": pairs,
        "worst_mistakes": [mistake for mistake in worst if mistake.image in thumbnails.urls],
        "image_urls": thumbnails.urls,
    }


def _make_classes(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any] | None:
    return {"classes": tables.make_classes_table(run)} if run.predictions else None


def _make_audit(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    return {"audit": run.audit, "audit_table": tables.make_audit_table(run.audit) if run.audit else None}


PANELS = (
    Panel("matrix", "Accuracy matrix", _make_matrix),
    Panel("weights", "Task weights", _make_task_weights),
    Panel("mistakes", "Mistakes", _make_mistakes),
    Panel("classes", "Classes", _make_classes),
    Panel("audit", "Audit", _make_audit),
)
