"""How long to train with very few images of each class: variants of the default on validation images.

    python benchmarks/few_rule.py --data cifar100=10 cars/=7 --backbones deit_tiny_patch16_224.safetensors --jobs 3

Rows: the default with the 20 epochs that its rule had for few images, with fewer epochs, or hardly trained at all (one epoch at a
negligible rate), and what trains nothing. Class orders 100 and 101, which no table uses; a share of the training images to test on.
Every run is a line of results/search/few.jsonl; runs in the log are not repeated. Prints the mean accuracy of each row.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from _common import ROOT
from _lab import Cell, run_all
from compare import ROWS, print_progress

HARDLY = {"epochs": 1, "learning_rate": 1e-9}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "default": ("caprompt", "default", {"epochs": 20}),
    "half of the epochs": ("caprompt", "default", {"epochs": 10}),
    "a fifth of the epochs": ("caprompt", "default", {"epochs": 4}),
    "not trained": ("caprompt", "default", HARDLY),
    "not trained, 1 block": ("caprompt", "default", {**HARDLY, "readout_blocks": 1}),
    "nearest class mean": ROWS["nearest class mean"],
    "ridge, frozen features": ROWS["ridge, frozen features"],
}


def make_cells(args: argparse.Namespace) -> list[Cell]:
    """Return all runs."""
    places = itertools.product(args.data, args.backbones, args.per_class, args.orders)
    return [
        Cell(
            label,
            method,
            data.partition("=")[0],
            backbone,
            int(data.partition("=")[2]),
            seed=order,
            preset=preset,
            options=options,
            validation=args.validation,
            per_class=per_class,
        )
        for data, backbone, per_class, order in places
        for label, (method, preset, options) in VARIANTS.items()
    ]


def main() -> None:
    """Run what is not in the log, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100=10"], metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["deit_tiny_patch16_224.fb_in1k"])
    parser.add_argument("--per-class", nargs="+", type=int, default=[1, 2, 3, 5])
    parser.add_argument("--orders", nargs="+", type=int, default=[100, 101])
    parser.add_argument("--validation", type=float, default=0.2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "few.jsonl")
    args = parser.parse_args()
    run_all(make_cells(args), args.log, args.jobs, args.seconds, print_progress)
    found: dict[tuple[str, str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in args.log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "ACC" in record:
            cell = record["cell"]
            found[cell["dataset"], cell["backbone"], cell["per_class"]][cell["label"]].append(record["ACC"])
    print(f"| data | backbone | images of a class | {' | '.join(VARIANTS)} |\n|---|---|--:|{'--:|' * len(VARIANTS)}")
    for place, rows in sorted(found.items()):
        cells = (f"{sum(rows[label]) / len(rows[label]):.1f}" if rows[label] else "" for label in VARIANTS)
        print(f"| {' | '.join(map(str, place))} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
