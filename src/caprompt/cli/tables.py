"""Tables for the terminal. Nothing is computed here that the library does not compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from caprompt.metrics import forgetting, incremental_accuracies
from caprompt.protocols import percent_title, single
from caprompt.reproduce.tables import PUBLISHED, ResultTable

if TYPE_CHECKING:
    from caprompt.experiments.audit import Audit
    from caprompt.experiments.run_folder import RunResult
    from caprompt.outputs import Evaluation, Prediction

SHORT = {
    "learning_accuracy": "when learned",
    "average_incremental_accuracy": "incremental",
    "backward_transfer": "BWT",
    "task_identification": "task id",
}

__all__ = ["as_terminal", "audit_table", "evaluation_table", "listing", "prediction_table", "run_table", "seeds_table"]


def listing(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table of words."""
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def run_table(results: RunResult) -> Table:
    """ACC and AF after each task, and the accuracy on every task's classes now; of a joint run there is only the latter."""
    if results.joint:
        accuracies = zip(results.tasks, results.matrix[-1], strict=True)
        rows = [[str(number), ", ".join(names), f"{value:.1f}"] for number, (names, value) in enumerate(accuracies, start=1)]
        return listing(percent_title("all classes learned at once", results.protocol), ["task", "classes", "accuracy"], rows)
    title = percent_title("after each task", results.protocol)
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    table.add_column("task")
    table.add_column("classes")
    for heading in ("ACC", "AF", "when learned", "at the end"):
        table.add_column(heading, justify="right")
    final = results.matrix[-1]
    for task, (names, acc) in enumerate(zip(results.tasks, incremental_accuracies(results.matrix), strict=False)):
        lost = forgetting(results.matrix[: task + 1])
        figures = [f"{value:.1f}" for value in (acc, lost, results.matrix[task][task], final[task])]
        table.add_row(str(task + 1), ", ".join(names), *figures)
    return table


def seeds_table(runs: Mapping[int, RunResult]) -> Table:
    """The figures of several seeds, their mean and spread; runs of different protocols are refused."""
    protocol = single(results.protocol for results in runs.values())
    summaries = {seed: results.summary() for seed, results in runs.items()}
    names = list(next(iter(summaries.values())))
    rows = [[str(seed), *(f"{figures[name]:.1f}" for name in names)] for seed, figures in summaries.items()]
    if len(rows) > 1:
        columns = [[figures[name] for figures in summaries.values()] for name in names]
        rows.append(["mean", *(f"{fmean(column):.1f} ± {stdev(column):.1f}" for column in columns)])
    return listing(percent_title("summary", protocol), ["seed", *(SHORT.get(name, name) for name in names)], rows)


def prediction_table(pictures: Sequence[str], predictions: Sequence[Prediction], top: int) -> Table:
    """One line per picture."""
    rows = []
    for picture, prediction in zip(pictures, predictions, strict=True):
        others = ", ".join(f"{score.label} {score.score:.2f}" for score in prediction.top[1:top])
        rows.append([picture, prediction.label, f"{prediction.score:.2f}", others])
    return listing("", ["image", "label", "score", "next"], rows)


def evaluation_table(evaluation: Evaluation) -> Table:
    """Accuracy per task, and over all."""
    rows = [[str(s.task), ", ".join(s.classes), str(s.images), f"{s.accuracy:.1f}"] for s in evaluation.tasks]
    rows.append(["all", f"mean over tasks {evaluation.average_accuracy:.1f}", str(evaluation.images), f"{evaluation.accuracy:.1f}"])
    return listing(percent_title("accuracy", evaluation.protocol), ["task", "classes", "images", "accuracy"], rows)


def audit_table(audit: Audit) -> Table:
    """One line per arrangement of the images."""
    rows = [
        [a.name, f"{a.accuracy:.2f}", f"{a.average_accuracy:.2f}", str(a.changed), f"{a.largest_difference:.1e}"]
        for a in audit.arrangements
    ]
    columns = ["arrangement", "accuracy", "ACC", "changed answers", "largest difference"]
    return listing(percent_title(f"audit of {audit.images} images", audit.protocol), columns, rows)


def as_terminal(sheet: ResultTable) -> Table:
    """With rich."""
    table = Table(title=sheet.title, title_justify="left", box=SIMPLE_HEAD, title_style="bold")
    words = len(sheet.heads) + 2
    for number, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="left" if number < words else "right")
    for line, row in zip(sheet.lines, sheet.rows(), strict=True):
        table.add_row(*row, style="dim" if line.source == PUBLISHED else None)
    return table
