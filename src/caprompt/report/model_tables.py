"""The tables of a report on a taught model: what it was taught, and how well it knows each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caprompt.metrics import format_interval
from caprompt.report.mistakes import ClassMetrics, compute_class_metrics
from caprompt.report.model_data import ModelRecord
from caprompt.report.tables import NOT_AVAILABLE, Table, format_size
from caprompt.utils.text import join_names

__all__ = ["make_about_table", "make_learned_table", "make_lessons_table", "make_worst_classes_table"]

NUM_NAMES = 6  # most class names of a lesson


def make_about_table(record: ModelRecord) -> Table:
    """Tabulate what the model is."""
    model = record.model
    rows = {
        "method": model.method.name,
        "classes": f"{len(model.classes):,}",
        "training images": f"{sum(model.images_seen.values()):,}",
        "calls of learn": str(model.num_calls),
        "backbone": model.backbone.name,
        "backbone sha256": str(model.backbone.sha256)[:16],
        "size without the backbone": format_size(record.num_bytes),
        "seed": str(model.seed),
    }
    return Table("The model", ["property", "value"], list(rows.items()))


def make_learned_table(record: ModelRecord) -> Table:
    """Tabulate the tasks: their classes, images and accuracy."""
    scores = {score.task: score for score in record.evaluation.tasks}
    images_seen = record.model.images_seen
    rows = []
    for task, names in enumerate(record.tasks, start=1):
        score = scores.get(task)
        tested = ["", "", "0"] if score is None else [f"{score.accuracy:.1f}", format_interval(score.interval), f"{score.images:,}"]
        rows.append([str(task), f"{len(names):,}", *tested, f"{sum(images_seen[name] for name in names):,}"])
    columns = ["task", "classes", "accuracy", "95 % interval", "test images", "training images"]
    return Table("The classes of each task, accuracy in percent", columns, rows)


def make_lessons_table(record: ModelRecord) -> Table | None:
    """Tabulate the calls of `learn` and the edits; None for a model of an earlier version, which did not record them."""
    rows = [
        [str(lesson.get("date", ""))[:10], _describe_lesson(lesson), _format_seconds(lesson.get("seconds"))]
        for lesson in record.model.lessons
    ]
    return Table("Lessons and edits", ["date", "what", "seconds"], rows) if rows else None


def make_worst_classes_table(record: ModelRecord) -> Table:
    """Tabulate every class, the lowest accuracy first and those without test images last."""
    confused: dict[str, str] = {}
    for each in record.evaluation.list_confusions():
        confused.setdefault(each.label, f"{each.predicted} ({each.count})")

    def order(each: ClassMetrics) -> tuple[bool, float, int]:
        return each.accuracy is None, each.accuracy or 0.0, -each.images

    rows = [
        [
            each.name,
            "" if each.accuracy is None else f"{each.accuracy:.1f}",
            "" if each.accuracy is None else format_interval(each.interval),
            f"{each.images:,}",
            confused.get(each.name, ""),
            "" if each.precision is None else f"{each.precision:.1f}",
            f"{record.model.images_seen[each.name]:,}",
            str(each.task),
        ]
        for each in sorted(compute_class_metrics(record.predictions, record.tasks), key=order)
    ]
    columns = ["class", "accuracy", "95 % interval", "test images", "most often taken for", "precision", "training images", "task"]
    return Table("Every class, the worst first, in percent", columns, rows)


def _describe_lesson(lesson: Mapping[str, Any]) -> str:
    """Return what a lesson or an edit did.

    >>> _describe_lesson({"kind": "learn", "classes": {"cat": {"images": 5, "new": True}, "dog": {"images": 1, "new": False}}})
    '6 images; new: cat; more of: dog'
    >>> _describe_lesson({"kind": "rename", "from": "dgo", "to": "dog"}), _describe_lesson({"kind": "forget"})
    ('dgo renamed to dog', 'a class was forgotten')
    """
    kind = lesson.get("kind")
    if kind == "learn":
        classes = lesson["classes"]
        count = sum(entry["images"] for entry in classes.values())
        new, more = ([name for name, entry in classes.items() if entry["new"] == is_new] for is_new in (True, False))
        parts = [f"{count:,} image{'' if count == 1 else 's'}"]
        parts += [f"new: {join_names(new, NUM_NAMES)}"] if new else []
        parts += [f"more of: {join_names(more, NUM_NAMES)}"] if more else []
        return "; ".join(parts)
    if kind == "rename":
        return f"{lesson['from']} renamed to {lesson['to']}"
    if kind == "join":
        return f"{join_names(lesson['from'], NUM_NAMES)} joined as {lesson['to']}"
    return "a class was forgotten" if kind == "forget" else str(kind)


def _format_seconds(seconds: float | None) -> str:
    return NOT_AVAILABLE if seconds is None else f"{seconds:,.1f}"
