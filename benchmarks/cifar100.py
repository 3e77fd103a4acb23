"""CIFAR-100 in 10 tasks of 10 classes: CAPrompt's presets, honest and as released, side by side.

    python benchmarks/cifar100.py --backbone deit_tiny_patch16_224.safetensors         # all rows, both class orders
    python benchmarks/cifar100.py --rows default --orders 11 --validation 0.1 --set test_crop=1.0      # select settings

Writes results/accuracy/cifar100.json and docs/cifar100.png; runs of other rows and orders in the file are kept. A class order
is `natural` or the seed that shuffles it. Each run is a process (`--jobs` at once), resumed if its `--folder` exists.
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
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.plots import plot_accuracy_curve
from caprompt.experiments.provenance import find_commit
from caprompt.experiments.run_folder import read_plan
from caprompt.metrics import average_accuracy
from caprompt.protocols import parse_kind

ROOT = Path(__file__).resolve().parents[1]
PAPER = {"batch_size": 64, "learning_rate": 3e-3}  # as in the measurements of results/references.toml
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper, as released": ("paper", {**PAPER, "protocol": "released"}),
    "paper": ("paper", PAPER),
    "default": ("default", {"batch_size": 64}),
}


def measure(row: str, order: str, folder: Path, common: dict[str, Any]) -> dict[str, Any]:
    """Run one row in one class order; return its metrics, settings and provenance."""
    preset, own = ROWS[row]
    order_settings = {"order": "natural", "seed": 0} if order == "natural" else {"order": "shuffled", "seed": int(order)}
    overrides = {"dataset": "cifar100", **own, **order_settings, **common}
    config = build_run_config({**load_preset_settings(preset, overrides), **overrides})
    start = time.perf_counter()
    results = run_experiment(config, folder, resume=folder.exists())
    plan = read_plan(folder)
    return {
        "row": row,
        "order": order,
        "commit": find_commit(),
        "data_sha256": {part: plan[part]["sha256"] for part in ("train", "test")},
        "matrix": results.matrix,
        "summary": results.summary(),
        "after": [average_accuracy(results.matrix[: task + 1]) for task in range(len(results.matrix))],
        "training_seconds": round(sum(task.seconds for task in results.rows), 1),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "protocol": results.protocol,
        "date": date.today().isoformat(),
        "settings": {key: value for key, value in common.items() if key != "backbone"},
        "backbone": plan["backbone"],
        "environment": plan["environment"],
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if torch.cuda.is_available() else None,
    }


def merge_runs(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return earlier and new runs sorted by order and row; a new run replaces an earlier one of the same row and order."""
    by_name = {(run["row"], run["order"]): run for run in [*before, *now]}
    return sorted(by_name.values(), key=lambda run: (run["order"] != "natural", run["order"], list(ROWS).index(run["row"])))


def format_table(runs: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a line for each run."""
    lines = ["| preset | class order | after 6 tasks | ACC | AF | task identified | training |", "|---|---|--:|--:|--:|--:|--:|"]
    for run in runs:
        metrics = run["summary"]
        sixth = f"{run['after'][5]:.1f}" if len(run["after"]) > 5 else "-"
        cells = [run["row"], run["order"], sixth, *(f"{metrics[key]:.1f}" for key in ("ACC", "AF", "task_identification"))]
        lines.append(f"| {' | '.join(cells)} | {run['training_seconds']:.0f} s |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS), help="none: only plot and print existing runs")
    parser.add_argument("--orders", nargs="+", default=["natural", "1"], help="'natural', or a seed that shuffles")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--validation", type=float, default=0.0, help="test on this share of the training images instead")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of every row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "accuracy" / "cifar100.json")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "cifar100.png")
    args = parser.parse_args()

    common = {
        "backbone": args.backbone,
        "epochs": args.epochs,
        "validation": args.validation,
        **arguments.collect_settings(None, args.set),
    }
    directory = args.folder or Path(tempfile.mkdtemp())
    jobs = [(row, order, directory / f"{row} {order}".replace(" ", "-"), common) for order in args.orders for row in args.rows]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = [{**job.result(), "jobs": args.jobs} for job in [pool.submit(measure, *job) for job in jobs]]
    runs = merge_runs(json.loads(args.json.read_text(encoding="utf-8")) if args.json.is_file() else [], runs)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    marks = {run["row"]: "" if parse_kind(run["protocol"]) == "honest" else " (LEAKS)" for run in runs}
    curves = {f"{row}{mark}": [run["matrix"] for run in runs if run["row"] == row] for row, mark in marks.items()}
    plot_accuracy_curve(curves, args.plot)
    print(format_table(runs))


if __name__ == "__main__":
    main()
