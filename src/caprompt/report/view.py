"""The view of a report: charts, tables and mistakes of runs, arranged for the template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from caprompt import metrics, protocols
from caprompt.metrics import METRICS
from caprompt.report import tables
from caprompt.report.charts import Series, draw_bar_chart, draw_legend, draw_line_chart
from caprompt.report.panels import PANELS, make_panels
from caprompt.report.run_data import RunRecord
from caprompt.report.tables import Group, Table
from caprompt.report.thumbnails import Thumbnails

__all__ = ["make_report_view"]


def make_report_view(runs: Sequence[RunRecord], thumbnails: Mapping[str, Thumbnails]) -> dict[str, Any]:
    """Make the variables of the template; `thumbnails` are by the name of the run."""
    protocol = protocols.require_same_protocol(run.results.protocol for run in runs)
    groups = tables.group_runs(runs)
    settings = tables.make_settings_table(runs, tables.list_settings, "The run")
    options = tables.make_settings_table(runs, tables.list_options, "Options of the method")
    return {
        "title": _format_title(runs),
        "runs": [_make_run_view(run, thumbnails.get(run.name, Thumbnails())) for run in runs],
        "protocol": protocol,
        "honest": protocols.parse_kind(protocol) == "honest",
        "warnings": _collect_warnings(runs),
        "tiles": _make_tiles(runs[0]) if len(runs) == 1 else [],
        "summary": tables.make_summary_table(runs),
        "means": tables.make_means_table(groups),
        "curve": _make_accuracy_curve(groups),
        "forgetting": _make_forgetting_chart(groups),
        "metrics": [(metric.label, metric.description) for metric in METRICS.values()],
        "cost": tables.make_cost_table(runs),
        "settings": settings,
        "options": options,
        "differences": tables.make_differences_table(settings, options) if len(runs) > 1 else None,
        "environment": tables.make_settings_table(runs, tables.list_environment, "Versions and machine"),
    }


def _format_title(runs: Sequence[RunRecord]) -> str:
    datasets = list(dict.fromkeys(Path(run.config.dataset).name for run in runs))  # only the last part of a path
    methods = list(dict.fromkeys(run.config.method for run in runs))
    count = "" if len(runs) == 1 else f" ({len(runs)} runs)"
    return f"{', '.join(methods)} on {', '.join(datasets)}{count}"


def _collect_warnings(runs: Sequence[RunRecord]) -> list[str]:
    """Collect the reasons to doubt the metrics, once each, with the run's name if several."""
    warnings = []
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        saved = [*run.plan.get("warnings", []), *run.plan.get("skipped", []), *((run.audit or {}).get("warnings", []))]
        warnings += [prefix + warning for warning in dict.fromkeys(saved)]
        if run.audit is not None and not run.audit["clean"]:
            warnings.append(f"{prefix}the audit found predictions that change with batch composition")
        if run.config.validation:
            warnings.append(f"{prefix}tested on validation images split from the training images, not on the test images")
    if len({run.plan["test"]["sha256"] for run in runs}) > 1:
        warnings.append("these runs were tested on different images, so their metrics are not comparable")
    return warnings


def _make_tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    """Make the headline of a single run: value, name and description of each tile."""
    summary, seconds = run.results.summary(), sum(row.seconds for row in run.results.rows)
    last = run.results.rows[-1]
    interval = metrics.format_interval(metrics.compute_mean_interval(last.accuracies, last.images))

    def tile(name: str, unit: str) -> tuple[str, str, str]:
        return f"{summary[name]:.1f}", f"{METRICS[name].label}, {unit}", METRICS[name].description

    value, name, description = tile("ACC", "%")
    tiles = [(value, name, f"{description}; 95 % interval {interval}, {tables.count_test_images(run):,} test images")]
    if not run.results.joint:
        tiles.append(tile("AF", "points"))
    tiles.append(tile("task_identification", "%"))
    size = f"{len(run.results.tasks)} tasks, {run.plan['train']['images']:,} images"
    tiles.append((tables.format_duration(seconds), "training", size))
    return tiles


def _make_series(groups: Sequence[Group], compute: Callable[[metrics.Matrix], Sequence[float]]) -> list[Series]:
    """Make a series per group: the mean over its seeds, and their range.

    Runs whose number of values differs from that of the first run of their group are left out.
    """
    all_series = []
    for group in groups:
        curves = [compute(run.results.matrix) for run in group.runs]
        columns = list(zip(*(curve for curve in curves if len(curve) == len(curves[0])), strict=True))
        has_range = len(curves) > 1
        low, high = ([reduce(column) for column in columns] if has_range else [] for reduce in (min, max))
        all_series.append(Series(group.name, [fmean(column) for column in columns], low, high))
    return all_series


def _make_accuracy_curve(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Make the chart, legend and table of the accuracy after each task; a joint run has none."""
    if groups[0].runs[0].results.joint:
        return None
    series = _make_series(groups, metrics.incremental_accuracies)
    longest = max(len(each.values) for each in series)
    rows = [[each.name, *(f"{value:.1f}" for value in each.values), *[""] * (longest - len(each.values))] for each in series]
    table = Table("ACC after each task, in percent", ["runs", *(f"task {task + 1}" for task in range(longest))], rows)
    chart = draw_line_chart(series, "Accuracy after each task, in percent", "tasks learned", "mean accuracy over tasks seen (%)")
    return {"chart": chart, "legend": _draw_legend_of_several(series), "table": table}


def _make_forgetting_chart(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Make the chart of the accuracy that tasks have lost since their best; one task has none."""
    series = [each for each in _make_series(groups, metrics.forgetting_per_task) if each.values]
    longest = max((len(each.values) for each in series), default=0)
    series = [each for each in series if len(each.values) == longest]
    if not series:
        return None
    labels = [f"task {task + 1}" for task in range(longest)]
    chart = draw_bar_chart(labels, series, "Accuracy that each task has lost since its best, in points")
    return {"chart": chart, "legend": _draw_legend_of_several(series)}


def _make_run_view(run: RunRecord, thumbnails: Thumbnails) -> dict[str, Any]:
    """Make the template variables that belong to one run."""
    return {
        "name": run.name,
        "notes": [*run.notes, *([thumbnails.note] if thumbnails.note else [])],
        "panels": make_panels(run, thumbnails, PANELS),
    }


def _draw_legend_of_several(series: Sequence[Series]) -> Markup:
    """Draw the legend, empty for a single series."""
    return draw_legend(series) if len(series) > 1 else Markup("")
