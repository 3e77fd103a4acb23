"""CIFAR-100 in 10 tasks of 10 classes: CAPrompt's presets, honest and as released, side by side.

    python benchmarks/cifar100.py --backbone deit_tiny_patch16_224.safetensors         # all rows, both class orders
    python benchmarks/cifar100.py --rows default --orders 11 --validation 0.1 --set test_crop=1.0      # choosing settings

Writes benchmarks/results/cifar100.json and docs/cifar100.png; runs of other rows and orders that stand there are kept. A class
order is `natural` or the seed that shuffles it. A run is a process of its own (`--jobs` at once), resumed where its `--folder` is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from caprompt.cli import arguments
from caprompt.experiments.config import build_run_config, preset_settings
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import accuracy_curve
from caprompt.experiments.run_folder import read_plan
from caprompt.metrics import average_accuracy
from caprompt.protocols import kind

HERE = Path(__file__).parent
PAPER = {"batch_size": 64, "learning_rate": 3e-3}  # as the reference figures were measured
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper, as released": ("paper", {**PAPER, "protocol": "released"}),
    "paper": ("paper", PAPER),
    "default": ("default", {"batch_size": 64}),
}


def measure(row: str, order: str, folder: Path, common: dict[str, Any]) -> dict[str, Any]:
    """One run, from data to the accuracy matrix."""
    preset, own = ROWS[row]
    where = {"order": "natural", "seed": 0} if order == "natural" else {"order": "shuffled", "seed": int(order)}
    given = {"dataset": "cifar100", **own, **where, **common}
    config = build_run_config({**preset_settings(preset, given), **given})
    began = time.perf_counter()
    results = run_experiment(config, folder, resume=folder.exists())
    return {
        "row": row,
        "order": order,
        "matrix": results.matrix,
        "summary": results.summary(),
        "after": [average_accuracy(results.matrix[: task + 1]) for task in range(len(results.matrix))],
        "training_seconds": round(sum(task.seconds for task in results.rows), 1),
        "wall_seconds": round(time.perf_counter() - began, 1),
        "protocol": results.protocol,
        "date": date.today().isoformat(),
        "settings": {key: value for key, value in common.items() if key != "backbone"},
        "backbone": read_plan(folder)["backbone"],
        "environment": read_plan(folder)["environment"],
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None,
    }


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of this and of earlier calls, a new one in place of an old one of the same row and order; in the order of the rows."""
    by_name = {(one["row"], one["order"]): one for one in [*before, *now]}
    return sorted(by_name.values(), key=lambda one: (one["order"] != "natural", one["order"], list(ROWS).index(one["row"])))


def markdown(found: list[dict[str, Any]]) -> str:
    """One line a run."""
    lines = ["| preset | class order | after 6 tasks | ACC | AF | task identified | training |", "|---|---|--:|--:|--:|--:|--:|"]
    for one in found:
        figures = one["summary"]
        sixth = f"{one['after'][5]:.1f}" if len(one["after"]) > 5 else "-"
        cells = [one["row"], one["order"], sixth, *(f"{figures[key]:.1f}" for key in ("ACC", "AF", "task_identification"))]
        lines.append(f"| {' | '.join(cells)} | {one['training_seconds']:.0f} s |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS), help="none: only draw and print what is there")
    parser.add_argument("--orders", nargs="+", default=["natural", "1"], help="'natural', or a seed that shuffles")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--validation", type=float, default=0.0, help="test on this share of the training images instead")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of every row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "cifar100.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "cifar100.png")
    args = parser.parse_args()

    common = {
        "backbone": args.backbone,
        "epochs": args.epochs,
        "validation": args.validation,
        **arguments.collect_settings(None, args.set),
    }
    home = args.folder or Path(tempfile.mkdtemp())
    jobs = [(row, order, home / f"{row} {order}".replace(" ", "-"), common) for order in args.orders for row in args.rows]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        found = [{**job.result(), "jobs": args.jobs} for job in [pool.submit(measure, *job) for job in jobs]]
    found = merged(json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else [], found)
    args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    marks = {one["row"]: "" if kind(one["protocol"]) == "honest" else " (LEAKS)" for one in found}
    curves = {f"{row}{mark}": [one["matrix"] for one in found if one["row"] == row] for row, mark in marks.items()}
    accuracy_curve(curves, args.picture)
    print(markdown(found))


if __name__ == "__main__":
    main()
