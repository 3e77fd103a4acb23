"""What stands where in a report: figures, tables and mistakes of runs, arranged for the template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from caprompt import metrics, protocols
from caprompt.report import tables
from caprompt.report.charts import Series, bar_chart, legend, line_chart
from caprompt.report.mistakes import confused_pairs, worst_mistakes
from caprompt.report.run_data import RunRecord
from caprompt.report.tables import Group, Table
from caprompt.report.task_weights import CycleFigures, weights_by_cycle
from caprompt.report.thumbnails import Thumbnails

__all__ = ["report_view", "shown_images"]

PAIRS, WORST = 10, 12


def report_view(runs: Sequence[RunRecord], pictures: Mapping[str, Thumbnails]) -> dict[str, Any]:
    """All that the template asks for."""
    protocol = protocols.single(run.results.protocol for run in runs)
    groups = tables.grouped(runs)
    settings = tables.settings_table(runs, tables.settings, "The run")
    options = tables.settings_table(runs, tables.options, "Options of the method")
    return {
        "title": title(runs),
        "runs": [run_view(run, pictures.get(run.name, Thumbnails())) for run in runs],
        "protocol": protocol,
        "honest": protocols.kind(protocol) == "honest",
        "warnings": warnings(runs),
        "tiles": tiles(runs[0]) if len(runs) == 1 else [],
        "summary": tables.summary_table(runs),
        "means": tables.means_table(groups),
        "curve": curve(groups),
        "forgetting": forgetting_chart(groups),
        "cost": tables.cost_table(runs),
        "settings": settings,
        "options": options,
        "differences": tables.differing(settings, options) if len(runs) > 1 else None,
        "environment": tables.settings_table(runs, tables.environment, "Versions and machine"),
    }


def shown_images(run: RunRecord) -> list[int]:
    """The test images whose pictures a report shows."""
    if run.final is None:
        return []
    pairs = confused_pairs(run.final, PAIRS)
    return [m.image for m in (*worst_mistakes(run.final, WORST), *(mistake for pair in pairs for mistake in pair.worst))]


def title(runs: Sequence[RunRecord]) -> str:
    """What is reported on, in a line."""
    datasets = list(dict.fromkeys(Path(run.config.dataset).name for run in runs))  # of a folder, only what it is called
    methods = list(dict.fromkeys(run.config.method for run in runs))
    count = "" if len(runs) == 1 else f" ({len(runs)} runs)"
    return f"{', '.join(methods)} on {', '.join(datasets)}{count}"


def warnings(runs: Sequence[RunRecord]) -> list[str]:
    """What casts doubt on the figures, each said once, with the run's name where there are several."""
    found = []
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        doubts = [*run.plan.get("warnings", []), *run.plan.get("skipped", []), *((run.audit or {}).get("warnings", []))]
        found += [prefix + doubt for doubt in dict.fromkeys(doubts)]
        if run.audit is not None and not run.audit["clean"]:
            found.append(f"{prefix}the audit found answers that depend on the other images of a batch")
        if run.config.validation:
            found.append(f"{prefix}tested on images held out from the training images, not on the test images")
    if len({run.plan["test"]["sha256"] for run in runs}) > 1:
        found.append("these runs were tested on different images; their figures are of different things")
    return found


def tiles(run: RunRecord) -> list[tuple[str, str, str]]:
    """The headline of a single run: figure, name, and what it means."""
    figures, seconds = run.results.summary(), sum(row.seconds for row in run.results.rows)
    found = [(f"{figures['ACC']:.1f}", "ACC, %", "mean accuracy over the tasks, after the last one")]
    if not run.results.joint:
        found.append((f"{figures['AF']:.1f}", "AF, points", "what a task has lost since its best, on average"))
    found.append((f"{figures['task_identification']:.1f}", "task identified, %", "how often the likeliest task is the right one"))
    found.append((tables.duration(seconds), "training", f"{len(run.results.tasks)} tasks, {run.plan['train']['images']:,} images"))
    return found


def series_of(groups: Sequence[Group], values: Callable[[metrics.Matrix], Sequence[float]]) -> list[Series]:
    """A series per group: the mean over its seeds, and their range. Runs of other lengths than the first are left out."""
    found = []
    for group in groups:
        curves = [values(run.results.matrix) for run in group.runs]
        columns = list(zip(*(curve for curve in curves if len(curve) == len(curves[0])), strict=True))
        several = len(curves) > 1
        low, high = ([each(column) for column in columns] if several else [] for each in (min, max))
        found.append(Series(group.name, [fmean(column) for column in columns], low, high))
    return found


def curve(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Accuracy after each task: figure, legend and numbers; a joint run has none."""
    if groups[0].runs[0].results.joint:
        return None
    series = series_of(groups, metrics.incremental_accuracies)
    most = max(len(each.values) for each in series)
    rows = [[each.name, *(f"{value:.1f}" for value in each.values), *[""] * (most - len(each.values))] for each in series]
    numbers = Table("ACC after each task, in percent", ["runs", *(f"task {n + 1}" for n in range(most))], rows)
    figure = line_chart(series, "Accuracy after each task, in percent", "tasks learned", "mean accuracy over tasks seen (%)")
    return {"figure": figure, "legend": legend(series) if len(series) > 1 else Markup(""), "numbers": numbers}


def forgetting_chart(groups: Sequence[Group]) -> dict[str, Any] | None:
    """What every task but the last has lost since its best; nothing after a single task."""
    series = [each for each in series_of(groups, metrics.forgetting_per_task) if each.values]
    longest = max((len(each.values) for each in series), default=0)
    series = [each for each in series if len(each.values) == longest]
    if not series:
        return None
    labels = [f"task {task + 1}" for task in range(longest)]
    figure = bar_chart(labels, series, "Accuracy that each task has lost since its best, in points")
    return {"figure": figure, "legend": legend(series) if len(series) > 1 else Markup("")}


def run_view(run: RunRecord, pictures: Thumbnails) -> dict[str, Any]:
    """What is told of one run alone."""
    results, final = run.results, run.final
    cycles = weights_by_cycle(final, results.tasks) if final else []
    return {
        "name": run.name,
        "notes": [*run.notes, *([pictures.note] if pictures.note else [])],
        "matrix": results.matrix,
        "tasks": list(enumerate(results.tasks, start=1)),
        "joint": results.joint,
        "cycles": cycles,
        "cycle_curve": cycle_curve(cycles),
        "mistakes": sum((final.true != final.answer).tolist()) if final else 0,
        "tested": run.plan["test"]["images"],
        "pairs": confused_pairs(final, PAIRS) if final else [],
        "worst": [mistake for mistake in worst_mistakes(final, WORST) if mistake.image in pictures.urls] if final else [],
        "pictures": pictures.urls,
        "classes": tables.classes_table(run) if final else None,
        "audit": run.audit,
        "audit_table": tables.audit_table(run.audit) if run.audit else None,
    }


def cycle_curve(cycles: Sequence[CycleFigures]) -> dict[str, Any] | None:
    """How weights and accuracy move with the number of cycles."""
    if len(cycles) < 2:
        return None
    series = [
        Series("weight of the right task", [each.on_true_task for each in cycles]),
        Series("accuracy", [each.accuracy for each in cycles]),
    ]
    figure = line_chart(series, "Weight of the right task, and accuracy, by cycles", "cycles", "mean over test images (%)")
    return {"figure": figure, "legend": legend(series)}
