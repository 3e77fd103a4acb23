"""docs/results.md, made from what was measured: the CIFAR-100 benchmark's JSON file, and the cells of reproductions.

Honest figures and those of the released programs' protocol stand on one page, but never in one table, and the latter are marked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from caprompt.errors import ModelFolderError
from caprompt.metrics import mean_std
from caprompt.protocols import kind, single
from caprompt.reproduce.evidence import Evidence, machine
from caprompt.reproduce.plan import read_record
from caprompt.reproduce.scales import scales
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.reproduce.writers import section
from caprompt.utils.files import read_toml

__all__ = [
    "benchmark_section",
    "few_section",
    "frozen_section",
    "read_benchmark",
    "references",
    "reproduced_section",
    "reproductions",
]

Runs = Sequence[dict[str, Any]]
NEEDED = {
    "row",
    "order",
    "summary",
    "after",
    "training_seconds",
    "wall_seconds",
    "protocol",
    "date",
    "settings",
    "backbone",
    "environment",
}
LEAKS = "**LEAKS: no honest figures.** Only to be compared with published tables."


def read_benchmark(path: Path) -> Runs:
    """The runs that `benchmarks/cifar100.py` wrote down."""
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
        if not runs or any(NEEDED - run.keys() for run in runs):
            raise ValueError("figures are missing")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelFolderError(f"'{path}' does not hold the CIFAR-100 benchmark; write it with benchmarks/cifar100.py") from error
    return [run for run in runs if not run["settings"].get("validation")]  # those chose settings; they are no test


def references() -> list[dict[str, Any]]:
    """Figures of other programs on the same data and backbone, from `references.toml`."""
    found: list[dict[str, Any]] = read_toml(Path(__file__).with_name("references.toml"))["cifar100"]
    return found


# -- the benchmark -------------------------------------------------------------------------------------------------------------


def benchmark_section(runs: Runs, picture: str) -> str:
    """CIFAR-100 in ten tasks: a table for each protocol, what it is to be compared with, and how it was measured."""
    parts = ["## CIFAR-100, 10 tasks of 10 classes", f"![Accuracy after each task]({picture})"]
    for protocol in sorted({kind(run["protocol"]) for run in runs}):
        own = [run for run in runs if kind(run["protocol"]) == protocol]
        near = [each for each in references() if each["protocol"] == protocol]
        heading = "### Honest figures" if protocol == "honest" else f"### Figures of the protocol {protocol.upper()}\n\n{LEAKS}"
        parts += [heading, runs_table(own), f"Protocol {single(run['protocol'] for run in own)}."]
        parts += (
            ["To compare with, measured by other programs on the same data and backbone:\n\n" + reference_table(near)]
            if near
            else []
        )
    bounds = [each for each in references() if each["protocol"] == "joint"]
    parts += ["### Upper bound\n\nClass-incremental learning above joint training is a warning sign.\n\n" + reference_table(bounds)]
    return "\n\n".join([*parts, measured_how(runs)])


def runs_table(runs: Runs) -> str:
    """A line for each run, and one for the mean over class orders of each row that has several."""
    lines = [
        "| settings | class order | epochs | after 6 tasks | ACC | AF | task identified | training | whole run | memory |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, epochs in dict.fromkeys(map(_settings, runs)):
        own = [run for run in runs if _settings(run) == (name, epochs)]
        lines += [_row([name, run["order"], epochs, *_accuracies([run]), *_cost(run)]) for run in own]
        if len(own) > 1:
            lines.append(_row([f"{name}, mean", f"{len(own)} orders", epochs, *_accuracies(own), "", "", ""]))
    return "\n".join(lines)


def _settings(run: dict[str, Any]) -> tuple[str, str]:
    """What a run was, and its epochs; settings beyond those of its row are named."""
    beyond = [f"{key}={value}" for key, value in run["settings"].items() if key not in ("epochs", "validation")]
    return ", ".join([run["row"], *beyond]), str(run["settings"]["epochs"])


def _accuracies(runs: Runs) -> list[str]:
    columns = [[run["after"][5] for run in runs if len(run["after"]) > 5]]
    columns += [[run["summary"][name] for run in runs] for name in ("ACC", "AF", "task_identification")]
    return [mean_std(column).text(1) if column else "-" for column in columns]


def _cost(run: dict[str, Any]) -> list[str]:
    memory, jobs = run.get("peak_memory_gb"), run.get("jobs", 1)
    company = f", {jobs} runs at once" if jobs > 1 else ""
    return [f"{run['training_seconds']:.0f} s{company}", f"{run['wall_seconds']:.0f} s", f"{memory:.1f} GB" if memory else "-"]


def reference_table(found: Iterable[dict[str, Any]]) -> str:
    """A line for each reference."""
    rows = [_row([each["what"], each["when"], " to ".join(map(str, each["accuracy"]))]) for each in found]
    return "\n".join(["| what | when | accuracy |", "|---|---|--:|", *rows])


def measured_how(runs: Runs) -> str:
    """Backbone, machine, versions, dates and command; a line for each combination there is."""
    lines = []
    for run in runs:
        backbone, where = run["backbone"], machine(run["environment"])
        lines.append(f"- backbone {backbone['name']} (SHA-256 {backbone['sha256'][:12]}), {where}, {run['date']}")
    command = "python benchmarks/cifar100.py --backbone deit_tiny_patch16_224.safetensors"
    note = "In percent; a class order is natural or the seed that shuffles it, and the seed of everything else as well."
    return "\n".join(["Measured with:", "", *dict.fromkeys(lines), "", note, "", f"```\n{command}\n```"])


def frozen_section(path: Path) -> str:
    """What the frozen backbone is worth with nothing trained, for both ways to enlarge small pictures."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        ways, where = found["percent"], f"backbone {found['backbone']}, {machine(found['environment'])}, {found['date']}"
        rows = [_row([name, *(f"{ways[way][name]:.2f}" for way in FROZEN_WAYS)]) for name in ways["pillow"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"'{path}' does not hold figures of frozen features; write it with benchmarks/frozen.py") from error
    table = "\n".join([_row(["accuracy in percent", *FROZEN_WAYS.values()]), "|---|--:|--:|", *rows])
    parts = ["## CIFAR-100, nothing trained", FROZEN_NOTE, table, f"Measured with {where}:", f"```\n{FROZEN_COMMAND}\n```"]
    return "\n\n".join(parts)


def few_section(path: Path) -> str:
    """What comes of few images of each class, a column for each class order that was run."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, count = found["rows"], int(found["images_per_class"])
        orders = sorted({order for own in rows.values() for order in own}, key=int)
        figures = {label: [f"{own[order]:.2f}" if order in own else "not run" for order in orders] for label, own in rows.items()}
        where = f"backbone {found['backbone']}, {machine(found['environment'])}, {found['date']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"'{path}' does not hold figures of few images; write it with benchmarks/few.py") from error
    heads = _row(["ACC in percent", *(f"order {order}" for order in orders)])
    table = "\n".join([heads, f"|---|{'--:|' * len(orders)}", *(_row([label, *own]) for label, own in figures.items())])
    title = f"## CIFAR-100, {count} images of each class to learn from"
    return "\n\n".join([title, FEW_NOTE, table, f"Measured with {where}:", f"```\n{FEW_COMMAND}\n```"])


FEW_NOTE = (
    "Ten tasks of ten classes, preset `budget` (5 epochs a task) with nothing tuned for few images, all test images, honest. "
    "The row of 20 epochs trains on the first task for as long as its authors do."
)
FEW_COMMAND = "python benchmarks/few.py --backbone deit_tiny_patch16_224.safetensors"
FROZEN_WAYS = {"pillow": "by Pillow's rule, as everywhere here", "interpolate": "by torch's interpolate"}
FROZEN_NOTE = (
    "Features of the frozen backbone, all 100 classes at once, honest. Pictures of 32 pixels are enlarged to 256 and cut to 224; "
    "the bicubic rules of Pillow and of `torch.nn.functional.interpolate` differ in a constant, which small pictures feel."
)
FROZEN_COMMAND = "python benchmarks/frozen.py --backbone deit_tiny_patch16_224.safetensors"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# -- reproductions -------------------------------------------------------------------------------------------------------------


def reproductions(reproduced: Path, cells: str = "cells") -> list[tuple[Path, Evidence]]:
    """The folder of each target that has been reproduced here, and what it rests on."""
    places = [reproduced / f"{scale}{mark}" / name for scale in scales() for mark in ("", "-released") for name in TARGETS]
    records = [(place, place / f"{place.name}.json") for place in places]
    return [(place, read_record(record, reproduced / cells)) for place, record in records if record.is_file()]


def reproduced_section(place: Path, evidence: Evidence, page_folder: Path) -> str:
    """A target's part of the page, from its cells."""
    pictures = f"{os.path.relpath(place, page_folder)}/"
    return section(evidence, evidence.target.present(evidence), pictures, level=2)
