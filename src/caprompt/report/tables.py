"""The tables of a report, formatted from run records; metrics themselves are computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caprompt.experiments.audit import Audit
from caprompt.metrics import METRICS, mean_std
from caprompt.report.mistakes import compute_class_metrics
from caprompt.report.run_data import RunRecord

__all__ = [
    "Group",
    "Table",
    "format_duration",
    "group_runs",
    "list_environment",
    "list_options",
    "list_settings",
    "make_audit_table",
    "make_classes_table",
    "make_cost_table",
    "make_differences_table",
    "make_means_table",
    "make_settings_table",
    "make_summary_table",
]

NOT_AVAILABLE = "n/a"


@dataclass(frozen=True)
class Table:
    """A table of text; the first cell of a row is its heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, under one name."""

    name: str
    runs: Sequence[RunRecord]


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Group runs that differ only in their seed, named by their method if that is distinct."""
    members: dict[str, list[RunRecord]] = {}
    for run in runs:
        members.setdefault(run.group_key, []).append(run)
    methods = [group[0].config.method for group in members.values()]
    names = [
        method if methods.count(method) == 1 else f"{method} ({group[0].name})"
        for method, group in zip(methods, members.values(), strict=True)
    ]
    return [Group(name, group) for name, group in zip(names, members.values(), strict=True)]


def make_summary_table(runs: Sequence[RunRecord]) -> Table:
    """Tabulate the metrics of each run, one row per run."""
    rows = [
        [run.name, run.config.method, str(run.config.seed), *(f"{run.results.summary()[name]:.1f}" for name in METRICS)]
        for run in runs
    ]
    return Table(
        "All metrics, in percent" if len(runs) == 1 else "Metrics of every run, in percent",
        ["run", "method", "seed", *(metric.label for metric in METRICS.values())],
        rows,
    )


def make_means_table(groups: Sequence[Group]) -> Table | None:
    """Tabulate mean and standard deviation over seeds; return None if no group has several runs."""
    rows = []
    for group in groups:
        if len(group.runs) > 1:
            summaries = [run.results.summary() for run in group.runs]
            columns = [[summary[name] for summary in summaries] for name in METRICS]
            rows.append([group.name, str(len(summaries)), *(mean_std(column).text(1) for column in columns)])
    caption = "Mean and standard deviation over seeds, in percent"
    return Table(caption, ["runs", "seeds", *(metric.label for metric in METRICS.values())], rows) if rows else None


def make_classes_table(run: RunRecord) -> Table:
    """Tabulate the accuracy and precision of every class after the last task."""
    assert run.predictions is not None
    rows = [
        [
            each.name,
            str(each.task),
            str(each.images),
            f"{each.accuracy:.1f}",
            "" if each.precision is None else f"{each.precision:.1f}",
        ]
        for each in compute_class_metrics(run.predictions, run.results.tasks)
    ]
    return Table("Every class after the last task, in percent", ["class", "task", "test images", "accuracy", "precision"], rows)


def make_audit_table(document: Mapping[str, Any]) -> Table:
    """Tabulate an audit (the content of `audit.json`), one row per arrangement of the images."""
    audit = Audit.from_dict(document)
    return Table(f"The same {audit.images} images in several arrangements", *audit.tabulate())


def make_cost_table(runs: Sequence[RunRecord]) -> Table:
    """Tabulate time, memory and parameters of each run, with n/a for what was not saved."""
    rows = []
    for run in runs:
        cost, seconds = run.cost, sum(row.seconds for row in run.results.rows)
        speed = f"{cost['test_images'] / cost['test_seconds']:,.0f}" if cost.get("test_seconds") else NOT_AVAILABLE
        peak, size, size_per_class = (cost.get(key) for key in ("peak_memory_bytes", "kept_bytes", "kept_bytes_per_class"))
        trained = f"{cost['trained_parameters']:,}" if "trained_parameters" in cost else NOT_AVAILABLE
        memory = f"{_format_megabytes(peak)} ({cost['peak_memory_of']})" if peak else NOT_AVAILABLE
        passes = f"{run.results.rows[-1].mean_passes:.2f}"
        sizes = [_format_megabytes(size), _format_kilobytes(size_per_class)]
        rows.append([run.name, f"{seconds:,.1f}", memory, trained, *sizes, passes, speed])
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
    return Table("Cost of each run; parameters are those that the last task trained", columns, rows)


def make_settings_table(runs: Sequence[RunRecord], settings: Callable[[RunRecord], Mapping[str, str]], caption: str) -> Table:
    """Tabulate what `settings` lists for each run, one row per setting and one column per run."""
    columns = [settings(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    headings = ["setting", *(run.name if len(runs) > 1 else "value" for run in runs)]
    return Table(caption, headings, [[name, *(column.get(name, NOT_AVAILABLE) for column in columns)] for name in names])


def make_differences_table(*tables: Table) -> Table | None:
    """Tabulate the settings whose values differ between runs; return None if there are none."""
    rows = [row for table in tables for row in table.rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", tables[0].columns, rows) if rows else None


def format_duration(seconds: float) -> str:
    """Format seconds in one or two units.

    >>> format_duration(41.2), format_duration(80), format_duration(8000)
    ('41 s', '1 min 20 s', '2 h 13 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def list_settings(run: RunRecord) -> dict[str, str]:
    """List the configuration of a run, its numbers of images and its backbone and data hashes."""
    plan = run.plan
    config = {name: value for name, value in plan["config"].items() if name != "options"}
    config["tasks"] = " + ".join(str(len(names)) for names in run.results.tasks) + " classes"
    images = {f"{part} images": plan[part]["images"] for part in ("train", "test")}
    hashes = {f"{part} sha256": str(plan[part]["sha256"])[:16] for part in ("backbone", "train", "test")}
    return {name: _format_value(value) for name, value in {**config, **images, **hashes}.items()}


def list_options(run: RunRecord) -> dict[str, str]:
    """List the options of a run's method, defaults included."""
    return {name: _format_value(value) for name, value in run.plan["options"].items()}


def list_environment(run: RunRecord) -> dict[str, str]:
    """List the package versions and the machine of a run."""
    return {name: str(value) for name, value in run.plan["environment"].items()}


def _format_megabytes(size: int | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size / 1e6:,.1f} MB"


def _format_kilobytes(size: int | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size / 1e3:,.1f} kB"


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_format_value(each) for each in value)
    return "none" if value is None else str(value)
