"""The view of a report on a taught model, arranged for the template."""

from __future__ import annotations

from typing import Any

from caprompt import protocols
from caprompt.metrics import METRICS, format_interval
from caprompt.protocols import make_leak_warning
from caprompt.report import model_tables
from caprompt.report.model_data import ModelRecord
from caprompt.report.panels import MODEL_PANELS, make_panels
from caprompt.report.tables import Table, format_size, format_value
from caprompt.report.thumbnails import Thumbnails

__all__ = ["make_model_view"]


def make_model_view(record: ModelRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    """Make the variables of the template."""
    options = record.model.method.options
    leak = make_leak_warning(options)
    settings = [[name, format_value(value)] for name, value in options.model_dump(mode="json").items()]
    view = {
        "name": record.name,
        "notes": [thumbnails.note] if thumbnails.note else [],
        "panels": make_panels(record, thumbnails, MODEL_PANELS),
    }
    return {
        "title": f"{record.name}: {record.model.method.name}",
        "record": view,
        "protocol": record.evaluation.protocol,
        "honest": protocols.parse_kind(record.evaluation.protocol) == "honest",
        "warnings": [*([leak] if leak else []), *record.evaluation.skipped],
        "tiles": _make_tiles(record),
        "about": model_tables.make_about_table(record),
        "options": Table("Options of the method", ["option", "value"], settings),
    }


def _make_tiles(record: ModelRecord) -> list[tuple[str, str, str]]:
    """Make the headline: value, name and description of each tile."""
    evaluation, model = record.evaluation, record.model
    images = f"{evaluation.images:,} test image{'' if evaluation.images == 1 else 's'}"
    learned = (
        f"learned from {sum(model.images_seen.values()):,} images in {model.num_calls} call{'' if model.num_calls == 1 else 's'}"
    )
    tiles = [
        (f"{evaluation.accuracy:.1f}", "accuracy, %", f"95 % interval {format_interval(evaluation.interval)}, {images}"),
        (
            f"{evaluation.calibration_error:.1f}",
            "calibration error, points",
            "how far scores and accuracy are apart, on average over the test images",
        ),
        (f"{len(model.classes):,}", "classes", learned),
        (format_size(record.num_bytes), "size", f"without the backbone {model.backbone.name}"),
    ]
    if len(evaluation.tasks) > 1:
        mean = f"95 % interval {format_interval(evaluation.average_interval)}, {METRICS['ACC'].description}"
        tiles.insert(1, (f"{evaluation.average_accuracy:.1f}", "ACC, %", mean))
        tiles.insert(2, (f"{evaluation.task_identification:.1f}", "task identified, %", METRICS["task_identification"].description))
    return tiles
