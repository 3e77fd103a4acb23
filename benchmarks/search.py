"""The same search for every method: learning rates x crops x epochs, on validation images of a class order that no table uses.

    python benchmarks/search.py --data cifar100=0.1 cars/=0.5 --backbone deit_tiny_patch16_224.safetensors --jobs 3

`--data NAME=SHARE` is a data set's name, or a folder with `train` and `test`, and the share of its training images to test on.
The rates are multiples of the method's own rate in preset `budget`, since optimizers differ; the crops are the smallest area of a
random crop; batch size and epochs follow from the number of images by the rule of our default (`methods/components/effort.py`), or
the epochs are a third of that. So the settings that are found fit tasks of any size. Every method gets the same part of the data:
the first classes of class order 100 in a few tasks, some images of each. A method that trains nothing has one point. Every run is a
line of results/search/methods.jsonl; runs in the log are not repeated. Prints the best point of each method, and writes those to
results/search/found.json, from which `benchmarks/compare.py --found` takes the settings of its rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

from _common import ROOT
from _lab import Cell, describe, identify, run_all

from caprompt.backbones.weights import load_backbone
from caprompt.experiments.config import load_preset_settings
from caprompt.methods import list_methods
from caprompt.methods.caprompt.mixture import RATE_TIMES_WIDTH

RATES = (0.3, 1.0, 3.0)  # times the method's own
CROPS = (0.08, 0.3)
EFFORTS = (0.33, 1.0)  # times the epochs of the default's rule
ORDER = 100
TRAINS_NOTHING = ("ncm", "ridge")


class Point(NamedTuple):
    """One point of the grid."""

    rate: float = 1.0
    crop: float = 0.3
    effort: float = 1.0

    def __str__(self) -> str:
        return f"rate x {self.rate:g}, crops from {self.crop:g}, epochs x {self.effort:g}"

    def make_options(self, method: str, backbone: str) -> dict[str, Any]:
        """Return the options of a method on a backbone."""
        rate = load_preset_settings("budget", {"method": method})["learning_rate"]
        rate = RATE_TIMES_WIDTH / load_backbone(backbone).config.width if rate == "auto" else rate
        return {
            "learning_rate": float(f"{self.rate * rate:.3g}"),
            "crop_scale": (self.crop, 1.0),
            "batch_size": "auto",
            "epochs": "auto",
        }


GRID = tuple(Point(*values) for values in itertools.product(RATES, CROPS, EFFORTS))


def make_cells(args: argparse.Namespace, data: str, method: str) -> list[Cell]:
    """Return the runs of one method on one data set."""
    dataset, _, validation = data.partition("=")
    return [
        Cell(
            label=str(point),
            method=method,
            dataset=dataset,
            backbone=args.backbone,
            tasks=args.tasks,
            seed=ORDER,
            options=point.make_options(method, args.backbone),
            validation=float(validation),
            per_class=args.per_class,
            classes=args.classes,
            effort=point.effort,
        )
        for point in ([Point()] if method in TRAINS_NOTHING else GRID)
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
    parser.add_argument("--data", nargs="+", default=["cifar100=0.1"], metavar="NAME=SHARE")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--methods", nargs="+", default=sorted(list_methods()))
    parser.add_argument("--classes", type=int, default=42)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--per-class", type=int, default=14)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "search")
    args = parser.parse_args()
    cells = {(data, method): make_cells(args, data, method) for method in args.methods for data in args.data}
    log = args.out / "methods.jsonl"
    run_all([cell for own in cells.values() for cell in own], log, args.jobs, args.seconds, print_progress)
    points = {str(point): point for point in GRID}
    found: dict[str, dict[str, Any]] = {}
    print("| data | method | validation accuracy | best point |\n|---|---|--:|---|")
    for (_, method), own in cells.items():
        best = find_best(log, own)
        if best:
            name, label = best["cell"]["dataset"], best["cell"]["label"]
            found.setdefault(name, {})[method] = points[label]._asdict()
            print(f"| {name} | {method} | {best['ACC']:.1f} | {label} |")
    (args.out / "found.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
