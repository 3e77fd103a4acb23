"""What every method costs in time: training and prediction, one method after another on an otherwise idle device.

    python benchmarks/methods.py --backbone deit_tiny_patch16_224.safetensors     # writes docs/reproduced/cells/speeds.json

The comparison of all methods, which is made of cells beside that file, shows these figures.

Random pictures of 32 pixels. Nine tasks of ten classes with a few images each come first, so that everything is as large as late in
a run of CIFAR-100; then ten classes with `--images` each are learned for three epochs with the preset `budget`, of which the last
one counts, and the pictures are predicted. `rest` is what learning that task took beside its epochs: a look at the images before
training, statistics, alignment, regressions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import RESULTS, save

from caprompt import ContinualClassifier
from caprompt.data import Samples, read
from caprompt.reproduce.comparison import ROWS, SPEED_FILE
from caprompt.reproduce.evidence import Row
from caprompt.running import preset_settings, run_config

EPOCHS = 3


def pictures(task: int, each: int) -> Samples:
    """Ten new classes of random pictures."""
    chance = np.random.default_rng(task)
    images = [chance.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(10 * each)]
    return read((images, [f"class {10 * task + number % 10}" for number in range(10 * each)]))


def measured(row: Row) -> dict[str, Any]:
    """Learn, time the last epoch and the rest of the last task, predict twice and time the second time."""
    given = {"method": row.method, "backbone": args.backbone, **row.options, "epochs": EPOCHS}
    options = run_config({**preset_settings("budget", given), **given}).options
    model = ContinualClassifier(row.method, args.backbone, **options)
    for task in range(args.tasks - 1):
        model.learn(pictures(task, 4))
    last = pictures(args.tasks, args.images)
    began = time.perf_counter()
    model.learn(last)
    whole = time.perf_counter() - began
    epochs = [entry["seconds"] for entry in model.history if entry["call"] == args.tasks - 1]
    model.predict(last.pictures)
    began = time.perf_counter()
    passes = [answer.passes for answer in model.predict(last.pictures)]
    predicting = time.perf_counter() - began
    return {
        "training_images_per_second": len(last) / epochs[-1] if epochs else None,
        "rest_seconds": whole - sum(epochs),
        "prediction_images_per_second": len(last) / predicting,
        "passes": sum(passes) / len(passes),
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None,
    }


def main() -> None:
    """Measure, print, write."""
    rows: dict[str, dict[str, Any]] = {}
    print("| method | training images/s | rest of a task, s | prediction images/s | passes |\n|---|--:|--:|--:|--:|")
    for row in ROWS:
        if row.options.get("joint"):  # not a way to learn task by task
            continue
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        found = rows[row.label] = measured(row)
        trained = f"{found['training_images_per_second']:.0f}" if found["training_images_per_second"] else "-"
        cells = [trained, f"{found['rest_seconds']:.1f}", f"{found['prediction_images_per_second']:.0f}", f"{found['passes']:.0f}"]
        print(f"| {row.label} | {' | '.join(cells)} |", flush=True)
        figures = {"tasks": args.tasks, "images_per_class": args.images, "backbone": Path(args.backbone).stem, "rows": rows}
        save(Path(SPEED_FILE).stem, figures, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--images", type=int, default=250, help="of each class of the last task")
    parser.add_argument("--out", type=Path, default=RESULTS.parents[1] / "docs" / "reproduced" / "cells")
    args = parser.parse_args()
    main()
