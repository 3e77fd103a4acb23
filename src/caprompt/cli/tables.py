"""Tables for the terminal, of values that the library has computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from caprompt.metrics import METRICS, forgetting, format_interval, incremental_accuracies, mean_std
from caprompt.protocols import format_percent_title, require_same_protocol
from caprompt.reproduce.tables import PUBLISHED, ResultTable
from caprompt.utils.text import escape_controls, join_names

if TYPE_CHECKING:
    from caprompt.experiments.audit import Audit
    from caprompt.experiments.run_folder import RunResult
    from caprompt.outputs import Evaluation, Prediction

__all__ = [
    "make_audit_table",
    "make_class_table",
    "make_evaluation_table",
    "make_prediction_table",
    "make_result_table",
    "make_run_table",
    "make_seeds_table",
    "make_table",
]


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of strings."""
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def make_run_table(results: RunResult) -> Table:
    """Return ACC and AF after each task, and the accuracy on each task's classes; a joint run has the latter only."""
    if results.joint:
        accuracies = zip(results.tasks, results.matrix[-1], strict=True)
        rows = [[str(number), ", ".join(names), f"{value:.1f}"] for number, (names, value) in enumerate(accuracies, start=1)]
        return make_table(
            format_percent_title("all classes learned at once", results.protocol), ["task", "classes", "accuracy"], rows
        )
    title = format_percent_title("after each task", results.protocol)
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    table.add_column("task")
    table.add_column("classes")
    for heading in ("ACC", "AF", "when learned", "at the end"):
        table.add_column(heading, justify="right")
    final = results.matrix[-1]
    for task, (names, acc) in enumerate(zip(results.tasks, incremental_accuracies(results.matrix), strict=False)):
        af = forgetting(results.matrix[: task + 1])
        values = [f"{value:.1f}" for value in (acc, af, results.matrix[task][task], final[task])]
        table.add_row(str(task + 1), ", ".join(names), *values)
    return table


def make_seeds_table(runs: Mapping[int, RunResult]) -> Table:
    """Return the metrics of each seed, their mean and standard deviation; raise if protocols differ."""
    protocol = require_same_protocol(results.protocol for results in runs.values())
    summaries = {seed: results.summary() for seed, results in runs.items()}
    names = list(next(iter(summaries.values())))
    rows = [[str(seed), *(f"{summary[name]:.1f}" for name in names)] for seed, summary in summaries.items()]
    if len(rows) > 1:
        columns = [[summary[name] for summary in summaries.values()] for name in names]
        rows.append(["mean", *(mean_std(column).text(1) for column in columns)])
    return make_table(format_percent_title("summary", protocol), ["seed", *(METRICS[name].label for name in names)], rows)


def make_prediction_table(images: Sequence[str], predictions: Sequence[Prediction], top: int) -> Table:
    """Return a row per image with its best classes."""
    rows = []
    for image, prediction in zip(images, predictions, strict=True):
        others = ", ".join(f"{score.label} {score.score:.2f}" for score in prediction.top[1:top])
        note = "none of these?" if prediction.unknown else ""
        plausible = join_names([str(label) for label in prediction.prediction_set])
        rows.append([escape_controls(image), str(prediction.label), f"{prediction.score:.2f}", others, note, plausible])
    # Columns that are empty in every row are left out.
    shown = [column for column in range(6) if column < 4 or any(row[column] for row in rows)]
    names = ["image", "label", "score", "next", "", "one of"]
    table = make_table("", [names[column] for column in shown], [[row[column] for column in shown] for row in rows])
    for column in table.columns[:2]:
        column.overflow = "fold"  # a name that is cut off might be any of several
    return table


def make_evaluation_table(evaluation: Evaluation) -> Table:
    """Return the accuracy per task and overall, with its 95 % confidence interval."""
    rows = [
        [str(each.task), join_names(each.classes), f"{each.images:,}", f"{each.accuracy:.1f}", format_interval(each.interval)]
        for each in evaluation.tasks
    ]
    mean = f"mean over tasks {evaluation.average_accuracy:.1f}"
    rows.append(["all", mean, f"{evaluation.images:,}", f"{evaluation.accuracy:.1f}", format_interval(evaluation.interval)])
    title = format_percent_title("accuracy", evaluation.protocol)
    return make_table(title, ["task", "classes", "images", "accuracy", "95 % interval"], rows)


def make_class_table(evaluation: Evaluation, names: Sequence[str]) -> Table:
    """Return the accuracy on each of these classes, with its 95 % confidence interval and number of images."""
    rows = [
        [
            name,
            f"{evaluation.images_per_class[name]:,}",
            f"{evaluation.per_class[name]:.1f}",
            format_interval(evaluation.intervals[name]),
        ]
        for name in names
    ]
    title = format_percent_title("accuracy by class, the worst first", evaluation.protocol)
    return make_table(title, ["class", "images", "accuracy", "95 % interval"], rows)


def make_audit_table(audit: Audit) -> Table:
    """Return a row per arrangement of the images into batches."""
    return make_table(format_percent_title(f"audit of {audit.images} images", audit.protocol), *audit.tabulate())


def make_result_table(results: ResultTable) -> Table:
    """Return a result table of `caprompt reproduce`, with the published rows dimmed."""
    table = Table(title=results.title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    num_labels = len(results.heads) + 2
    for number, heading in enumerate(results.headings):
        table.add_column(heading, justify="left" if number < num_labels else "right")
    for line, row in zip(results.lines, results.rows(), strict=True):
        table.add_row(*row, style="dim" if line.source == PUBLISHED else None)
    return table
