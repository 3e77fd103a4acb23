"""The default beside what it has to beat, on data sets and backbones given by the caller: one table, three class orders.

    python benchmarks/compare.py --data cifar100=10 cars/=7 --backbones deit_tiny_patch16_224.safetensors --orders 0 1 2

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. Rows: nearest class mean, ridge regression on frozen
features, RanPAC (20 epochs of unclipped SGD on the first task, as its authors train), our default, and the default trained jointly;
with `--found results/search/found.json` also every method with the settings that `benchmarks/search.py` found for it, and with
`--authors METHOD ...` these methods with the settings of their authors, above all their epochs (preset `paper`).
`--per-class` takes that many training images of each class. With `--validation 0.1` a tenth of the training images is tested on in
place of the test images. `--compile` trains our rows with torch.compile, which shortens long runs with a small backbone.
Every run is a line of `--log`, and runs in the log are not repeated. Prints the table of test accuracies that docs/results.md has.
"""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path
from typing import Any

from _common import ROOT
from _lab import Cell, run_all
from search import Point

from caprompt.methods import get_method

RANPAC = {"epochs": 20, "batch_size": 48, "learning_rate": 0.01}
ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nearest class mean": ("ncm", "budget", {}),
    "ridge, frozen features": ("ranpac", "budget", {"adapt_first": False, "ridge_selection": "all-tasks"}),
    "ridge, frozen, strength by the current task": ("ranpac", "budget", {"adapt_first": False}),
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
            found = json.loads(args.found.read_text(encoding="utf-8"))[Path(dataset).name] if args.found else {}
            points = {
                f"{method}, searched": (method, Point(**point))
                for method, point in found.items()
                if not args.methods or method in args.methods
            }
            searched = {
                label: (method, "budget", point.make_options(method, backbone)) for label, (method, point) in points.items()
            }
            authors: dict[str, tuple[str, str, dict[str, Any]]] = {
                f"{method}, authors' settings": (method, "paper", {}) for method in args.authors
            }
            rows = {**{label: ROWS[label] for label in args.rows}, **searched, **authors}
            for label, (method, preset, options) in rows.items():
                has_projections = "projections" in get_method(method).options_class.model_fields
                own: dict[str, Any] = {"projections": args.projections} if has_projections else {}
                own |= {"compile": True} if args.compile and method == "caprompt" else {}
                own |= {"test_crop": args.test_crop} if args.test_crop and not label.startswith("default") else {}
                common = {
                    "seed": seed,
                    "preset": preset,
                    "validation": args.validation,
                    "per_class": per_class,
                    "classes": args.classes,
                    "effort": points[label][1].effort if label in points else 1.0,
                }
                joint = label.endswith("jointly")
                cells.append(Cell(label, method, dataset, backbone, int(tasks), **common, options={**options, **own}, joint=joint))
    return cells


def print_progress(cell: Cell, result: dict[str, Any]) -> None:
    """Print one run."""
    figures = f"ACC {result['ACC']:.2f}, {result['seconds']} s" if "ACC" in result else result["error"]
    place = f"{Path(cell.dataset).name}, {Path(cell.backbone).stem}, {cell.per_class or 'all'} images a class"
    print(f"{place}, {cell.label}, order {cell.seed}: {figures}", flush=True)


def main() -> None:
    """Run what is not in the log, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100=10"], metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["deit_tiny_patch16_224.fb_in1k"])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--orders", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--per-class", nargs="+", type=int)
    parser.add_argument("--classes", type=int, help="only the first classes of each order")
    parser.add_argument("--found", type=Path, help="settings found by benchmarks/search.py")
    parser.add_argument("--projections", type=int, default=10_000)
    parser.add_argument("--validation", type=float, default=0.0)
    parser.add_argument("--methods", nargs="+", help="of the settings that were found; default: all")
    parser.add_argument("--authors", nargs="+", default=[], help="methods that are also run with their authors' settings")
    parser.add_argument("--test-crop", type=float, help="central crop of all rows but the default, which selects its own")
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "accuracy" / "comparison.jsonl")
    args = parser.parse_args()
    cells = make_cells(args)
    run_all(cells, args.log, args.jobs, args.seconds, print_progress)
    print(runpy.run_path(str(ROOT / "tools" / "results_page.py"))["format_comparison"](args.log))


if __name__ == "__main__":
    main()
