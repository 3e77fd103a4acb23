"""What a target is, and what its cells have found: the figures of a table, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caprompt.experiments.grid import Measure, is_done, read_failure, read_measure
from caprompt.experiments.run_folder import RunResult, read_plan
from caprompt.metrics import mean_std
from caprompt.protocols import kind, single
from caprompt.reproduce.plots import Picture
from caprompt.reproduce.scales import Scale
from caprompt.reproduce.tables import OURS, Entry, Line, ResultTable

__all__ = ["PAPER_DATA", "TITLES", "Evidence", "Place", "Presentation", "Row", "Target", "kind_of", "machine"]

Place = tuple[str, str, str]  # row, data set, backbone ("" for the scale's own)
PAPER_DATA = ("cifar100", "imagenet-r", "cub200")
TITLES = {"cifar100": "CIFAR-100", "imagenet-r": "ImageNet-R", "cub200": "CUB200", "tiny-imagenet": "Tiny-ImageNet"}


@dataclass(frozen=True)
class Row:
    """One way to learn: a method and what is special about it."""

    label: str
    method: str = "caprompt"
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def paper(cls, label: str, **options: Any) -> Row:
        """CAPrompt as the paper has it, but for these options."""
        return cls(label, options={"classifier": "aligned", **options})


@dataclass(frozen=True)
class Presentation:
    """What a target shows."""

    sheet: ResultTable
    pictures: Mapping[str, Picture] = field(default_factory=dict)  # by the ending of their file's name, "" for the only one


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
    """The cells behind one target at one scale, by name, and what lies on the disk of them; `planning.py` makes it."""

    target: Target
    scale: Scale
    home: Path  # where the cells are
    protocol: str
    planned: Mapping[Place, tuple[str, ...] | str]  # the cell of each seed, or why there is none

    @property
    def datasets(self) -> tuple[str, ...]:
        """Those of the columns, from left to right."""
        return tuple(dict.fromkeys(dataset for _, dataset, _ in self.planned))

    @property
    def backbones(self) -> dict[str, str]:
        """Those of the table's blocks, by title."""
        used = {backbone for _, _, backbone in self.planned}
        return {title: name for title, name in self.target.backbones.items() if name in used}

    def is_done(self, name: str) -> bool:
        """Has a cell given everything that this target needs?"""
        return is_done(self.home / name, self.target.measures)

    def done(self, row: Row, dataset: str, backbone: str = "") -> list[Path] | str:
        """The folders of a figure's finished cells, one per seed, or why there are none."""
        names = self.planned[row.label, dataset, backbone]
        if isinstance(names, str):
            return names
        finished = [self.home / name for name in names if self.is_done(name)]
        return finished or ("failed" if any(read_failure(self.home / name) for name in names) else "not run")

    def runs(self, row: Row, dataset: str, backbone: str = "") -> list[RunResult] | str:
        """The results of each seed."""
        folders = self.done(row, dataset, backbone)
        return folders if isinstance(folders, str) else [RunResult.load(folder) for folder in folders]

    def found(self, row: Row, dataset: str, measure: Measure, backbone: str = "") -> list[dict[str, Any]] | str:
        """What was measured for each seed."""
        folders = self.done(row, dataset, backbone)
        return folders if isinstance(folders, str) else [read_measure(folder, measure) for folder in folders]

    def metric(self, row: Row, dataset: str, name: str, backbone: str = "") -> Entry:
        """One of the usual figures of a run, over seeds."""
        runs = self.runs(row, dataset, backbone)
        if isinstance(runs, str):
            return runs
        single(run.protocol for run in runs)
        return mean_std([run.summary()[name] for run in runs])

    def protocol_of(self, row: Row) -> str:
        """Under which protocol a row is run, in a word; for a row of which nothing has been run, under which it would be."""
        runs = (self.runs(row, dataset, backbone) for label, dataset, backbone in self.planned if label == row.label)
        protocols = [run.protocol for found in runs if not isinstance(found, str) for run in found]
        return kind(single(protocols)) if protocols else kind_of(row, self.protocol)

    def blocks(self, columns: int, entries: Callable[[Row, str], Iterable[Entry]]) -> tuple[Line, ...]:
        """A line of ours for each row, a block for each data set; of one where nothing at all was run, a single line says so."""
        lines: list[Line] = []
        for dataset in self.datasets:
            done, place = [self.done(row, dataset) for row in self.target.rows], TITLES.get(dataset, dataset)
            if isinstance(done[0], str) and done.count(done[0]) == len(done):
                lines.append(Line((place, "every row"), OURS, "honest", (done[0],) * columns))
                continue
            for row in self.target.rows:
                lines.append(Line((place, row.label), OURS, self.protocol_of(row), tuple(entries(row, dataset))))
        return tuple(lines)

    def named(self, row: Row) -> str:
        """A row's name in a picture, marked where its figures are not honest."""
        rules = self.protocol_of(row)
        return row.label if rules == "honest" else f"{row.label} ({rules.upper()}: not honest)"

    def machines(self) -> tuple[str, ...]:
        """Where the cells were run, and with which versions."""
        names = {
            name for planned in self.planned.values() if not isinstance(planned, str) for name in planned if self.is_done(name)
        }
        found = (read_plan(self.home / name)["environment"] for name in sorted(names))
        return tuple(dict.fromkeys(machine(environment) for environment in found if environment))

    def notes(self) -> tuple[str, ...]:
        """What was not run, said plainly: by data set and backbone, and each failure with its reason."""
        absent: dict[str, set[str]] = {}
        for (_, dataset, backbone), names in self.planned.items():
            if isinstance(names, str):
                place = TITLES.get(dataset, dataset) + (f" with {backbone}" if backbone else "")
                absent.setdefault(names, set()).add(place)
        notes = [f"{', '.join(sorted(places))}: {why}, so there are no figures of ours" for why, places in absent.items()]
        planned = [names for names in self.planned.values() if not isinstance(names, str)]
        short = sum(not all(map(self.is_done, names)) for names in planned)
        notes += [f"{short} of {len(planned)} rest on fewer than {self.scale.seeds} seeds, or on none"] if short else []
        waiting = dict.fromkeys(name for names in planned for name in names if not self.is_done(name))
        reasons = {name: read_failure(self.home / name) for name in waiting}
        return (*notes, *self.concerns(), *(f"failed: {name} ({reason})" for name, reason in reasons.items() if reason))

    def concerns(self) -> tuple[str, ...]:
        """What readers of the figures should know of data and backbone, as the runs themselves have noted it."""
        found = [
            f"{TITLES.get(dataset, dataset)}: {warning}"
            for (_, dataset, _), names in self.planned.items()
            for name in (() if isinstance(names, str) else names)
            if self.is_done(name)
            for warning in read_plan(self.home / name).get("warnings", ())
        ]
        return tuple(dict.fromkeys(found))


def machine(environment: Mapping[str, Any]) -> str:
    """Where a run was made, from its `environment`."""
    return "{device}, torch {torch}, Python {python}, caprompt {caprompt}".format(**environment)


def kind_of(row: Row, protocol: str) -> str:
    """The protocol of a row where this one is asked for; only CAPrompt as the paper has it has the leak of its released program."""
    return protocol if row.method == "caprompt" and row.options.get("classifier") == "aligned" else "honest"
