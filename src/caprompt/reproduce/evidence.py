"""Targets (tables and figures as data), and the results of their cells: the values of a table, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caprompt.experiments.grid import Measure, is_done, read_failure, read_measure
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.metrics import mean_std
from caprompt.protocols import parse_kind, require_same_protocol
from caprompt.reproduce.plots import Plot
from caprompt.reproduce.scales import Scale
from caprompt.reproduce.tables import OURS, Entry, Line, ResultTable

__all__ = ["PAPER_DATA", "TITLES", "EntryKey", "Evidence", "Presentation", "Row", "Target", "describe_machine", "resolve_protocol"]

EntryKey = tuple[str, str, str]  # row, dataset, backbone ("" for the scale's own)
PAPER_DATA = ("cifar100", "imagenet-r", "cub200")
TITLES = {"cifar100": "CIFAR-100", "imagenet-r": "ImageNet-R", "cub200": "CUB200", "tiny-imagenet": "Tiny-ImageNet"}


@dataclass(frozen=True)
class Row:
    """A method with the options that distinguish it from other rows."""

    label: str
    method: str = "caprompt"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def paper(cls, label: str, **options: Any) -> Row:
        """Return CAPrompt as in the paper, with these options overridden."""
        return cls(label, options={"classifier": "aligned", **options})


@dataclass(frozen=True)
class Presentation:
    """The table and the plots of a target."""

    table: ResultTable
    plots: Mapping[str, Plot] = field(default_factory=dict)  # by suffix of the file name, "" for the only one


@dataclass(frozen=True)
class Target:
    """A table or figure, as data."""

    name: str
    title: str
    rows: tuple[Row, ...]
    present: Callable[[Evidence], Presentation]
    datasets: tuple[str, ...] = PAPER_DATA
    backbones: Mapping[str, str] = field(default_factory=lambda: {"": ""})  # by title; "" is the scale's own
    measures: tuple[Measure, ...] = ()
    preset: str = ""  # "" is the scale's own


@dataclass(frozen=True)
class Evidence:
    """The cells behind one target at one scale, by name, and their results on disk; made by `plan.py`."""

    target: Target
    scale: Scale
    cells_dir: Path
    protocol: str
    planned: Mapping[EntryKey, tuple[str, ...] | str]  # the cell of each seed, or why there is none

    @property
    def rows(self) -> tuple[Row, ...]:
        """The target's rows that were planned: a plan from an earlier version lacks those added since."""
        planned = {label for label, _, _ in self.planned}
        return tuple(row for row in self.target.rows if row.label in planned)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets of the columns, from left to right."""
        return tuple(dict.fromkeys(dataset for _, dataset, _ in self.planned))

    @property
    def backbones(self) -> dict[str, str]:
        """The backbones of the table's blocks, by title."""
        used = {backbone for _, _, backbone in self.planned}
        return {title: name for title, name in self.target.backbones.items() if name in used}

    def is_done(self, name: str) -> bool:
        """Return whether a cell has all results that this target needs."""
        return is_done(self.cells_dir / name, self.target.measures)

    def list_finished(self, row: Row, dataset: str, backbone: str = "") -> list[Path] | str:
        """Return the folders of an entry's finished cells, one per seed, or why there are none."""
        names = self.planned[row.label, dataset, backbone]
        if isinstance(names, str):
            return names
        finished = [self.cells_dir / name for name in names if self.is_done(name)]
        return finished or ("failed" if any(read_failure(self.cells_dir / name) for name in names) else "not run")

    def load_runs(self, row: Row, dataset: str, backbone: str = "") -> list[RunResult] | str:
        """Load the run of each seed."""
        folders = self.list_finished(row, dataset, backbone)
        return folders if isinstance(folders, str) else [RunResult.load(folder) for folder in folders]

    def read_measures(self, row: Row, dataset: str, measure: Measure, backbone: str = "") -> list[dict[str, Any]] | str:
        """Read a measure's result for each seed."""
        folders = self.list_finished(row, dataset, backbone)
        return folders if isinstance(folders, str) else [read_measure(folder, measure) for folder in folders]

    def compute_metric(self, row: Row, dataset: str, name: str, backbone: str = "") -> Entry:
        """Return mean and standard deviation over seeds of a metric in the runs' summaries."""
        runs = self.load_runs(row, dataset, backbone)
        if isinstance(runs, str):
            return runs
        require_same_protocol(run.protocol for run in runs)
        return mean_std([run.summary()[name] for run in runs])

    def get_protocol(self, row: Row) -> str:
        """Return the kind of protocol a row was run under, or would be if nothing of it has been run."""
        loaded = (self.load_runs(row, dataset, backbone) for label, dataset, backbone in self.planned if label == row.label)
        protocols = [run.protocol for runs in loaded if not isinstance(runs, str) for run in runs]
        return parse_kind(require_same_protocol(protocols)) if protocols else resolve_protocol(row, self.protocol)

    def build_lines(self, columns: int, entries: Callable[[Row, str], Iterable[Entry]]) -> tuple[Line, ...]:
        """Return a line for each row in a block for each dataset; a dataset with no results at all gets a single line."""
        lines: list[Line] = []
        for dataset in self.datasets:
            finished, title = [self.list_finished(row, dataset) for row in self.rows], TITLES.get(dataset, dataset)
            if isinstance(finished[0], str) and finished.count(finished[0]) == len(finished):
                lines.append(Line((title, "every row"), OURS, "honest", (finished[0],) * columns))
                continue
            for row in self.rows:
                lines.append(Line((title, row.label), OURS, self.get_protocol(row), tuple(entries(row, dataset))))
        return tuple(lines)

    def format_label(self, row: Row) -> str:
        """Return a row's label in a plot, marked where its protocol is not honest."""
        protocol = self.get_protocol(row)
        return row.label if protocol == "honest" else f"{row.label} ({protocol.upper()}: not honest)"

    def list_machines(self) -> tuple[str, ...]:
        """Return the machines and versions that the cells were run with."""
        names = {
            name for planned in self.planned.values() if not isinstance(planned, str) for name in planned if self.is_done(name)
        }
        environments = (read_plan(self.cells_dir / name)["environment"] for name in sorted(names))
        return tuple(dict.fromkeys(describe_machine(environment) for environment in environments if environment))

    def notes(self) -> tuple[str, ...]:
        """Return what was not run, by dataset and backbone, warnings of the runs, and each failure with its reason."""
        absent: dict[str, set[str]] = {}
        for (_, dataset, backbone), names in self.planned.items():
            if isinstance(names, str):
                title = TITLES.get(dataset, dataset) + (f" with {backbone}" if backbone else "")
                absent.setdefault(names, set()).add(title)
        notes = [f"{', '.join(sorted(titles))}: {why}, so there are no results of ours" for why, titles in absent.items()]
        planned = [names for names in self.planned.values() if not isinstance(names, str)]
        short = sum(not all(map(self.is_done, names)) for names in planned)
        notes += [f"{short} of {len(planned)} entries rest on fewer than {self.scale.seeds} seeds, or on none"] if short else []
        unfinished = dict.fromkeys(name for names in planned for name in names if not self.is_done(name))
        reasons = {name: read_failure(self.cells_dir / name) for name in unfinished}
        return (*notes, *self._list_warnings(), *(f"failed: {name} ({reason})" for name, reason in reasons.items() if reason))

    def _list_warnings(self) -> tuple[str, ...]:
        """Return the warnings about data and backbone that the runs have recorded."""
        warnings = [
            f"{TITLES.get(dataset, dataset)}: {warning}"
            for (_, dataset, _), names in self.planned.items()
            for name in (() if isinstance(names, str) else names)
            if self.is_done(name)
            for warning in read_plan(self.cells_dir / name).get("warnings", ())
        ]
        return tuple(dict.fromkeys(warnings))


def describe_machine(environment: Mapping[str, Any]) -> str:
    """Return device and versions of a run, from its `environment`."""
    return "{device}, torch {torch}, Python {python}, caprompt {caprompt}".format(**environment)


def resolve_protocol(row: Row, protocol: str) -> str:
    """Return the protocol of a row where this one is requested.

    Only CAPrompt as in the paper has the leak of the authors' released code.
    """
    return protocol if row.method == "caprompt" and row.options.get("classifier") == "aligned" else "honest"
