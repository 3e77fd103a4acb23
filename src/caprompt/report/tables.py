"""The tables of a report, formatted from run records; metrics themselves are computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caprompt.experiments.audit import Audit
from caprompt.metrics import METRICS, ReliabilityBin, compute_interval, format_interval, mean_std
from caprompt.report.mistakes import compute_class_metrics
from caprompt.report.run_data import RunRecord, Tested

__all__ = [
    "Group",
    "Table",
    "count_test_images",
    "format_duration",
    "format_size",
    "format_value",
    "group_runs",
    "list_environment",
    "list_options",
    "list_settings",
    "make_audit_table",
    "make_classes_table",
    "make_cost_table",
    "make_differences_table",
    "make_means_table",
    "make_reliability_table",
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
    """Tabulate the metrics of each run, one row per run; the caption has the number of test images, if it is the same for all."""
    counts = [count_test_images(run) for run in runs]
    is_same = len(set(counts)) == 1
    rows = [
        [
            run.name,
            run.config.method,
            str(run.config.seed),
            *(f"{run.results.summary()[name]:.1f}" for name in METRICS),
            format_interval(_compute_pooled_interval(run)),
            *([] if is_same else [f"{count:,}"]),
        ]
        for run, count in zip(runs, counts, strict=True)
    ]
    title = "All metrics" if len(runs) == 1 else "Metrics of every run"
    caption = f"{title}, in percent" + (f", on {counts[0]:,} test images" if is_same else "")
    labels = [metric.label for metric in METRICS.values()]
    return Table(caption, ["run", "method", "seed", *labels, "pooled, 95 % interval", *([] if is_same else ["test images"])], rows)


def count_test_images(run: RunRecord) -> int:
    """Return the number of test images of a run, after its last task."""
    return sum(run.results.rows[-1].images)


def _compute_pooled_interval(run: RunRecord) -> tuple[float, float]:
    row = run.results.rows[-1]
    correct = sum(round(accuracy * count / 100) for accuracy, count in zip(row.accuracies, row.images, strict=True))
    return compute_interval(correct, sum(row.images))


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


def make_classes_table(tested: Tested) -> Table:
    """Tabulate the accuracy and precision of every class after the last task."""
    assert tested.predictions is not None
    rows = [
        [
            each.name,
            "" if each.accuracy is None else f"{each.accuracy:.1f}",
            "" if each.accuracy is None else format_interval(each.interval),
            f"{each.images:,}",
            "" if each.precision is None else f"{each.precision:.1f}",
            str(each.task),
        ]
        for each in compute_class_metrics(tested.predictions, tested.tasks)
    ]
    columns = ["class", "accuracy", "95 % interval", "test images", "precision", "task"]
    return Table("Every class after the last task, in percent", columns, rows)


def make_reliability_table(bins: Sequence[ReliabilityBin]) -> Table:
    """Tabulate the bins of a reliability diagram that have images."""
    rows = [
        [
            f"{each.low:.1f} to {each.high:.1f}".replace(" ", "\N{NO-BREAK SPACE}"),  # row headings are wrapped
            f"{each.accuracy:.1f}",
            format_interval(compute_interval(round(each.accuracy * each.images / 100), each.images)),
            f"{each.mean_score:.1f}",
            f"{each.images:,}",
        ]
        for each in bins
        if each.mean_score is not None and each.accuracy is not None
    ]
    return Table("Accuracy by score, in percent", ["score", "accuracy", "95 % interval", "mean score", "test images"], rows)


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


def format_size(num_bytes: int) -> str:
    """Format a number of bytes.

    >>> format_size(1_234_567), format_size(45_678)
    ('1.2 MB', '45.7 kB')
    """
    return _format_megabytes(num_bytes) if num_bytes >= 1e6 else _format_kilobytes(num_bytes)


def list_settings(run: RunRecord) -> dict[str, str]:
    """List the configuration of a run, its numbers of images and its backbone and data hashes."""
    plan = run.plan
    config = {name: value for name, value in plan["config"].items() if name != "options"}
    config["tasks"] = " + ".join(str(len(names)) for names in run.results.tasks) + " classes"
    images = {f"{part} images": plan[part]["images"] for part in ("train", "test")}
    hashes = {f"{part} sha256": str(plan[part]["sha256"])[:16] for part in ("backbone", "train", "test")}
    return {name: format_value(value) for name, value in {**config, **images, **hashes}.items()}


def list_options(run: RunRecord) -> dict[str, str]:
    """List the options of a run's method, defaults included."""
    return {name: format_value(value) for name, value in run.plan["options"].items()}


def list_environment(run: RunRecord) -> dict[str, str]:
    """List the package versions and the machine of a run."""
    return {name: str(value) for name, value in run.plan["environment"].items()}


def _format_megabytes(size: int | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size / 1e6:,.1f} MB"


def _format_kilobytes(size: int | None) -> str:
    return NOT_AVAILABLE if size is None else f"{size / 1e3:,.1f} kB"


def format_value(value: Any) -> str:
    """Format the value of an option.

    >>> format_value([0.6, 1]), format_value(None)
    ('0.6, 1', 'none')
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(each) for each in value)
    return "none" if value is None else str(value)
