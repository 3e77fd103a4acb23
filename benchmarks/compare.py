"""The default beside what it has to beat, on data sets and backbones given by the caller: one table, three class orders.

    python benchmarks/compare.py --data cifar100=10 cars/=7 --backbones deit_tiny_patch16_224.safetensors --orders 0 1 2

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. Rows: nearest class mean, ridge regression on frozen
features, RanPAC (20 epochs of unclipped SGD on the first task, as its authors train), our default, and the default trained jointly.
`--per-class` takes that many training images of each class. With `--validation 0.1` a tenth of the training images is tested on in
place of the test images. Every run is a line of `--log`, and runs in the log are not repeated. Prints a table.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from _common import ROOT
from _lab import Cell, describe, identify, run_all

RANPAC = {"epochs": 20, "batch_size": 48, "learning_rate": 0.01}
ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nearest class mean": ("ncm", "budget", {}),
    "ridge, frozen features": ("ranpac", "budget", {"adapt_first": False}),
    "RanPAC, 20 epochs": ("ranpac", "budget", RANPAC),
    "default": ("caprompt", "default", {}),
    "default, trained jointly": ("caprompt", "default", {}),
}


def make_cells(args: argparse.Namespace) -> list[Cell]:
    """Return the runs of all rows; those of one order come first, so that an unfinished table has whole columns."""
    cells = []
    for seed in args.orders:
        for data, backbone, per_class in ((d, b, n) for d in args.data for b in args.backbones for n in args.per_class or [None]):
            dataset, _, tasks = data.partition("=")
            for label in args.rows:
                method, preset, options = ROWS[label]
                own = {"projections": args.projections} if "projections" not in options and method != "ncm" else {}
                common = {"seed": seed, "preset": preset, "validation": args.validation, "per_class": per_class}
                joint = label.endswith("jointly")
                cells.append(Cell(label, method, dataset, backbone, int(tasks), **common, options={**options, **own}, joint=joint))
    return cells


def print_progress(cell: Cell, result: dict[str, Any]) -> None:
    """Print one run."""
    figures = f"ACC {result['ACC']:.2f}, {result['seconds']} s" if "ACC" in result else result["error"]
    place = f"{Path(cell.dataset).name}, {Path(cell.backbone).stem}, {cell.per_class or 'all'} images a class"
    print(f"{place}, {cell.label}, order {cell.seed}: {figures}", flush=True)


def format_table(log: Path, wanted: list[Cell]) -> str:
    """Return a Markdown table of the wanted runs that are in the log."""
    names = {identify(describe(cell)) for cell in wanted}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "ACC" in record and identify(record["cell"]) in names:
            cell = record["cell"]
            groups[cell["dataset"], cell["backbone"], str(cell["per_class"] or "all"), cell["label"]].append(record)
    lines = [
        "| data | backbone | images a class | row | ACC of each order | mean | forgetting | training s |",
        "|---|---|--:|---|---|--:|--:|--:|",
    ]
    for place, records in groups.items():
        records.sort(key=lambda record: record["cell"]["seed"])
        accuracies = [record["ACC"] for record in records]
        spread = f" ± {np.std(accuracies):.2f}" if len(accuracies) > 1 else ""
        forgetting = f"{np.mean([record['forgetting'] for record in records]):.1f}" if "forgetting" in records[0] else ""
        seconds = f"{np.mean([record['training_seconds'] for record in records]):.0f}"
        each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        lines.append(f"| {' | '.join(place)} | {each} | {np.mean(accuracies):.2f}{spread} | {forgetting} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is not in the log, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100=10"], metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["deit_tiny_patch16_224.fb_in1k"])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--orders", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--per-class", nargs="+", type=int)
    parser.add_argument("--projections", type=int, default=10_000)
    parser.add_argument("--validation", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "accuracy" / "comparison.jsonl")
    args = parser.parse_args()
    cells = make_cells(args)
    run_all(cells, args.log, args.jobs, args.seconds, print_progress)
    print(format_table(args.log, cells))


if __name__ == "__main__":
    main()
