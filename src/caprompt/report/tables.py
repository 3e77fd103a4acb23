"""The tables of a report, each from what runs have kept. Nothing is computed here that others compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from caprompt.report.mistakes import class_figures
from caprompt.report.run_data import RunRecord

__all__ = [
    "Group",
    "Table",
    "audit_table",
    "classes_table",
    "cost_table",
    "differing",
    "duration",
    "environment",
    "grouped",
    "means_table",
    "options",
    "settings",
    "settings_table",
    "summary_table",
]

FIGURES = {
    "ACC": "ACC",
    "AF": "AF",
    "learning_accuracy": "when learned",
    "pooled": "pooled",
    "average_incremental_accuracy": "incremental",
    "backward_transfer": "BWT",
    "task_identification": "task identified",
}

NOT_KEPT = "n/a"


@dataclass(frozen=True)
class Table:
    """Words in rows; columns of numbers are set to the right and can be sorted by."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, under one name."""

    name: str
    runs: Sequence[RunRecord]


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """The runs by what they have in common, named by the method where that tells them apart."""
    kinds: dict[str, list[RunRecord]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    methods = [members[0].config.method for members in kinds.values()]
    names = [
        method if methods.count(method) == 1 else f"{method} ({members[0].name})"
        for method, members in zip(methods, kinds.values(), strict=True)
    ]
    return [Group(name, members) for name, members in zip(names, kinds.values(), strict=True)]


def summary_table(runs: Sequence[RunRecord]) -> Table:
    """A line per run."""
    rows = [
        [run.name, run.config.method, str(run.config.seed), *(f"{run.results.summary()[name]:.1f}" for name in FIGURES)]
        for run in runs
    ]
    return Table(
        "All figures, in percent" if len(runs) == 1 else "Figures of every run, in percent",
        ["run", "method", "seed", *FIGURES.values()],
        rows,
    )


def means_table(groups: Sequence[Group]) -> Table | None:
    """Mean and spread over seeds, if any group has several."""
    rows = []
    for group in groups:
        if len(group.runs) > 1:
            figures = [run.results.summary() for run in group.runs]
            columns = [[each[name] for each in figures] for name in FIGURES]
            rows.append([group.name, str(len(figures)), *(f"{fmean(column):.1f} ± {stdev(column):.1f}" for column in columns)])
    caption = "Mean and standard deviation over seeds, in percent"
    return Table(caption, ["runs", "seeds", *FIGURES.values()], rows) if rows else None


def classes_table(run: RunRecord) -> Table:
    """How every class fares at the end."""
    assert run.final is not None
    rows = [
        [
            each.name,
            str(each.task),
            str(each.images),
            f"{each.accuracy:.1f}",
            "" if each.precision is None else f"{each.precision:.1f}",
        ]
        for each in class_figures(run.final, run.results.tasks)
    ]
    return Table("Every class after the last task, in percent", ["class", "task", "test images", "accuracy", "precision"], rows)


def audit_table(audit: Mapping[str, Any]) -> Table:
    """One line per arrangement of the images."""
    rows = [
        [a["name"], f"{a['accuracy']:.2f}", f"{a['average_accuracy']:.2f}", str(a["changed"]), f"{a['largest_difference']:.1e}"]
        for a in audit["arrangements"]
    ]
    columns = ["arrangement", "accuracy", "ACC", "changed answers", "largest difference"]
    return Table(f"The same {audit['images']} images in several arrangements", columns, rows)


def cost_table(runs: Sequence[RunRecord]) -> Table:
    """Time, memory and parameters; and what a run did not keep."""
    rows = []
    for run in runs:
        cost, seconds = run.cost, sum(row.seconds for row in run.results.rows)
        speed = f"{cost['test_images'] / cost['test_seconds']:,.0f}" if cost.get("test_seconds") else NOT_KEPT
        peak, kept, each = (cost.get(key) for key in ("peak_memory_bytes", "kept_bytes", "kept_bytes_per_class"))
        trained = f"{cost['trained_parameters']:,}" if "trained_parameters" in cost else NOT_KEPT
        memory = f"{megabytes(peak)} ({cost['peak_memory_of']})" if peak else NOT_KEPT
        passes = f"{run.results.rows[-1].mean_passes:.2f}"
        rows.append([run.name, f"{seconds:,.1f}", memory, trained, megabytes(kept), kilobytes(each), passes, speed])
    columns = [
        "run",
        "training, s",
        "peak memory",
        "trained parameters",
        "model",
        "per class",
        "passes per image",
        "tested images/s",
    ]
    return Table("What the runs cost; parameters are those that the last task trained", columns, rows)


def settings_table(runs: Sequence[RunRecord], of: Callable[[RunRecord], Mapping[str, str]], caption: str) -> Table:
    """A line per setting, a column per run."""
    columns = [of(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heading = ["setting", *(run.name if len(runs) > 1 else "value" for run in runs)]
    return Table(caption, heading, [[name, *(column.get(name, NOT_KEPT) for column in columns)] for name in names])


def differing(*tables: Table) -> Table | None:
    """The lines of such tables whose values are not all the same."""
    rows = [row for table in tables for row in table.rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", tables[0].columns, rows) if rows else None


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(41.2), duration(80), duration(8000)
    ('41 s', '1 min 20 s', '2 h 13 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def megabytes(number: int | None) -> str:
    """Bytes in MB."""
    return NOT_KEPT if number is None else f"{number / 1e6:,.1f} MB"


def kilobytes(number: int | None) -> str:
    """Bytes in kB."""
    return NOT_KEPT if number is None else f"{number / 1e3:,.1f} kB"


def settings(run: RunRecord) -> dict[str, str]:
    """Configuration, data and backbone."""
    plan = run.plan
    own = {name: value for name, value in plan["config"].items() if name != "options"}
    own["tasks"] = " + ".join(str(len(names)) for names in run.results.tasks) + " classes"
    data = {f"{part} images": plan[part]["images"] for part in ("train", "test")}
    hashes = {f"{part} sha256": str(plan[part]["sha256"])[:16] for part in ("backbone", "train", "test")}
    return {name: _word(value) for name, value in {**own, **data, **hashes}.items()}


def options(run: RunRecord) -> dict[str, str]:
    """The method's options, those that nobody gave among them."""
    return {name: _word(value) for name, value in run.plan["options"].items()}


def environment(run: RunRecord) -> dict[str, str]:
    """Versions and machine."""
    return {name: str(value) for name, value in run.plan["environment"].items()}


def _word(value: Any) -> str:
    return ", ".join(_word(each) for each in value) if isinstance(value, (list, tuple)) else "none" if value is None else str(value)
