"""Variants of the default on validation images: what a change of its options gains.

    python benchmarks/variants.py --data cifar100=10 cars/=7 --backbones deit_tiny_patch16_224.safetensors \
        --variants "" "crops=false" "epochs=7 crop_scale=[0.5,1]" --jobs 4

A variant is a list of options; the empty one is the default itself. Class order 100, which no table uses; a share of the training
images to test on. Every run is a line of results/search/variants.jsonl; runs in the log are not repeated. Prints the accuracy of
each variant.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from _common import ROOT
from _lab import Cell, describe, identify, run_all
from compare import print_progress


def parse_variant(text: str) -> dict[str, Any]:
    """Return options from "name=value name=value"; values are JSON, or else text.

    >>> parse_variant("crops=false crop_scale=[0.5,1] readout_blocks=auto")
    {'crops': False, 'crop_scale': [0.5, 1], 'readout_blocks': 'auto'}
    """
    options: dict[str, Any] = {}
    for name, _, value in (part.partition("=") for part in text.split()):
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def make_cells(args: argparse.Namespace) -> list[Cell]:
    """Return all runs."""
    places = itertools.product(args.data, args.backbones, args.per_class or [None], args.orders, args.variants)
    common = {"compile": True} if args.compile else {}
    return [
        Cell(
            variant or "default",
            args.method,
            data.partition("=")[0],
            backbone,
            int(data.partition("=")[2]),
            seed=order,
            preset="default",
            options={"projections": args.projections, **common, **parse_variant(variant)},
            validation=args.validation,
            per_class=per_class,
            classes=args.classes,
            sweep=tuple(map(parse_variant, args.sweep)),
        )
        for data, backbone, per_class, order, variant in places
    ]


def main() -> None:
    """Run what is not in the log, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100=10"], metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["deit_tiny_patch16_224.fb_in1k"])
    parser.add_argument("--method", default="caprompt")
    parser.add_argument("--variants", nargs="+", default=[""])
    parser.add_argument("--sweep", nargs="*", default=[], help="options that concern prediction, each tried on the final model")
    parser.add_argument("--per-class", nargs="+", type=int)
    parser.add_argument("--classes", type=int, help="only the first classes of each order")
    parser.add_argument("--orders", nargs="+", type=int, default=[100])
    parser.add_argument("--projections", type=int, default=10_000)
    parser.add_argument("--validation", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "variants.jsonl")
    args = parser.parse_args()
    cells = make_cells(args)
    run_all(cells, args.log, args.jobs, args.seconds, print_progress)
    records = [json.loads(line) for line in args.log.read_text(encoding="utf-8").splitlines()]
    wanted = {identify(describe(cell)) for cell in cells}
    for record in records:
        if "ACC" in record and identify(record["cell"]) in wanted:
            cell, swept = record["cell"], {name: value for name, value in record.items() if name.startswith("{")}
            place = f"{cell['dataset']} | {cell['backbone']} | {cell['per_class'] or 'all'} | {cell['seed']}"
            print(f"| {place} | {cell['label']} | {record['ACC']:.2f} | {record['forgetting']:.2f} | {swept or ''} |")


if __name__ == "__main__":
    main()
