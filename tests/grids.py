"""Fake finished cells, for tests of grids and reproductions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from caprompt.experiments.grid import Cell
from caprompt.experiments.run_folder import PLANNED, RunResult, TaskResult
from caprompt.methods import get_method
from caprompt.protocols import describe_protocol
from caprompt.reproduce.evidence import Evidence
from caprompt.reproduce.plan import plan_target
from caprompt.reproduce.scales import get_scale
from caprompt.reproduce.targets.registry import TARGETS

TASKS = [["zero", "one"], ["two"], ["three"]]


def write_fake_cell(cell: Cell, cells_dir: Path, accuracy: float = 60.0) -> None:
    """Write the files of a finished cell, without a model; accuracies follow from `accuracy` and the seed."""
    folder = cells_dir / cell.name
    folder.mkdir(parents=True)
    seed, options = cell.config.seed, get_method(cell.config.method).options_class(**cell.config.options)
    config = cell.config.model_dump(mode="json")
    protocol = describe_protocol(options, cell.config.give_task)
    document: dict[str, Any] = {**{key: {} for key in PLANNED}, "config": config, "tasks": TASKS, "protocol": protocol}
    (folder / "run.json").write_text(json.dumps(document))
    rows = [
        TaskResult(tuple(accuracy + seed + 10 * task - step for task in range(step + 1)), (4,) * (step + 1), 70.0, 2.0, 1.5)
        for step in range(3)
    ]
    RunResult(folder, TASKS, rows, protocol).save()
    for measure in cell.measures:
        (folder / f"{measure.__name__}.json").write_text(json.dumps(make_fake_measures(cell)[measure.__name__]))


def make_fake_measures(cell: Cell) -> Mapping[str, Any]:
    """Return a fake result of each measure, by its name."""
    seed = cell.config.seed
    theorem = {"E1": 0.5, "E2": 0.6 + seed, "chosen": 0.7, "own": 0.4, "margin": 0.01, "margin_holds": 75.0, "margin_gains": 50.0}
    theorem |= {"delta": -0.01, "delta_holds": 80.0, "delta_newest": -0.02, "delta_holds_newest": 90.0}
    return {
        "given_task": {
            "protocol": describe_protocol(get_method(cell.config.method).options_class(**cell.config.options), give_task=True),
            "ACC": 90.0 + seed,
            "pooled": 91.0,
        },
        "by_cycles": {
            "protocol": "honest: own",
            "ACC": {str(n): 50.0 + n + seed for n in range(1, 7)},
            "auto": {"ACC": 55.0, "passes": 2.5 + seed},
        },
        "first_layer_keys": {"rows": np.random.default_rng(seed).normal(size=(3, 5, 8)).tolist()},
        "costs": {
            "numbers": 1000 if cell.config.method == "caprompt" else 2500,
            "bytes_per_class": 2000.0 + seed,
            "mean_passes": 2.0,
        },
        "concavity": {"protocol": "honest: own", "images": 60, **theorem, "margin_histogram": [0] * 19 + [30, 20, 10] + [0] * 18},
    }


def make_fake_evidence(target: str, cells_dir: Path, protocol: str = "honest", seeds: int = 2) -> Evidence:
    """Return the evidence of a target at scale tiny, with all its cells written."""
    evidence, cells = plan_target(TARGETS[target], get_scale("tiny", seeds=seeds), cells_dir, protocol)
    for number, cell in enumerate(cells):
        if not (cells_dir / cell.name).exists():
            write_fake_cell(cell, cells_dir, 40.0 + number)
    return evidence
