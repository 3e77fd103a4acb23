"""The same search for every method: learning rates x crops x steps, on validation images of a class order that no table uses.

    python benchmarks/search.py --data cifar100 cars/ --backbone deit_tiny_patch16_224.safetensors --jobs 3

The rates are multiples of the method's own rate in preset `budget`, since optimizers differ; the crops are the smallest area of a
random crop; the steps are optimizer steps of a task, in batches of 32. Every method gets the same part of the data: the first
classes of class order 100 in a few tasks, some images of each. A method that trains nothing has one point. Every run is a line of
results/search/methods.jsonl; runs in the log are not repeated. Prints the best point of each method, and writes those to
results/search/found.json, from which `benchmarks/compare.py --found` takes the settings of its rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from _common import ROOT
from _lab import Cell, describe, identify, run_all

from caprompt.backbones.weights import load_backbone
from caprompt.experiments.config import load_preset_settings
from caprompt.methods import list_methods
from caprompt.methods.caprompt import RATE_TIMES_WIDTH

RATES = (0.3, 1.0, 3.0)  # times the method's own
CROPS = (0.08, 0.3)
STEPS = (150, 500)  # per task
BATCH = 32
ORDER = 100
TRAINS_NOTHING = ("ncm",)


def make_options(method: str, width: int, factor: float, crop: float, steps: int, images: int) -> dict[str, Any]:
    """Return the options of one point of the grid for tasks of this many images, on a backbone of this width."""
    rate = load_preset_settings("budget", {"method": method})["learning_rate"]
    rate = RATE_TIMES_WIDTH / width if rate == "auto" else rate
    return {
        "learning_rate": float(f"{factor * rate:.3g}"),
        "crop_scale": (crop, 1.0),
        "batch_size": BATCH,
        "epochs": max(1, round(steps * BATCH / images)),
    }


def make_cells(args: argparse.Namespace, dataset: str, method: str) -> list[Cell]:
    """Return the runs of one method on one data set."""
    images, width = args.per_class * args.classes // args.tasks, load_backbone(args.backbone).config.width
    grid = [(1.0, 0.3, STEPS[0])] if method in TRAINS_NOTHING else list(itertools.product(RATES, CROPS, STEPS))
    return [
        Cell(
            label=f"rate x {factor:g}, crops from {crop:g}, {steps} steps",
            method=method,
            dataset=dataset,
            backbone=args.backbone,
            tasks=args.tasks,
            seed=ORDER,
            options=make_options(method, width, factor, crop, steps, images),
            validation=args.validation,
            per_class=args.per_class,
            classes=args.classes,
        )
        for factor, crop, steps in grid
    ]


def find_best(log: Path, wanted: list[Cell]) -> dict[str, Any] | None:
    """Return the record of highest accuracy among the wanted runs, if any is in the log."""
    names = {identify(describe(cell)) for cell in wanted}
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    own = [record for record in records if "ACC" in record and identify(record["cell"]) in names]
    return max(own, key=lambda record: float(record["ACC"])) if own else None


def print_progress(cell: Cell, result: dict[str, Any]) -> None:
    """Print one run."""
    figures = f"{result['ACC']:.2f} in {result['seconds']} s" if "ACC" in result else result["error"]
    print(f"{Path(cell.dataset).name}, {cell.method}, {cell.label}: {figures}", flush=True)


def main() -> None:
    """Run what is not in the log; print and write the best points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100"])
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--methods", nargs="+", default=sorted(list_methods()))
    parser.add_argument("--classes", type=int, default=30)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--validation", type=float, default=0.25)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "search")
    args = parser.parse_args()
    cells = {(dataset, method): make_cells(args, dataset, method) for method in args.methods for dataset in args.data}
    log = args.out / "methods.jsonl"
    run_all([cell for own in cells.values() for cell in own], log, args.jobs, args.seconds, print_progress)
    found: dict[str, dict[str, Any]] = {}
    print("| data | method | validation accuracy | best point |\n|---|---|--:|---|")
    for (dataset, method), own in cells.items():
        best = find_best(log, own)
        if best:
            found.setdefault(Path(dataset).name, {})[method] = best["cell"]["options"]
            print(f"| {Path(dataset).name} | {method} | {best['ACC']:.1f} | {best['cell']['label']} |")
    (args.out / "found.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
