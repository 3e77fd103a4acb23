"""What every method costs in time: training and prediction, one method after another on an otherwise idle device.

    python benchmarks/methods.py --backbone deit_tiny_patch16_224.safetensors     # writes docs/reproduced/cells/speeds.json

The comparison of all methods, which is made of cells beside that file, shows these figures.

CIFAR-100. Nine tasks of ten classes with a few images each come first, so that everything is as large as late in a run; then ten
classes with `--images` each are learned for three epochs with the preset `budget`, of which the last one counts, and test images of
all classes are predicted. `rest` is what learning that task took beside its epochs: a look at the images before training,
statistics, alignment, regressions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, save

from caprompt import ContinualClassifier
from caprompt.data import Dataset, load_dataset
from caprompt.experiments.config import build_run_config, preset_settings
from caprompt.reproduce.evidence import Row
from caprompt.reproduce.scales import backbone_title
from caprompt.reproduce.targets.comparison import ROWS, SPEED_FILE

EPOCHS = 3
FEW = 4  # images of each class of the earlier tasks
TESTED = 25  # test images of each class


def measured(row: Row, data: Dataset) -> dict[str, Any]:
    """Learn, time the last epoch and the rest of the last task, predict twice and time the second time."""
    given = {"method": row.method, "backbone": args.backbone, **row.options, "epochs": EPOCHS}
    options = build_run_config({**preset_settings("budget", given), **given}).options
    model = ContinualClassifier(row.method, args.backbone, **options)
    classes = data.train.classes
    for start in range(0, len(classes) - 10, 10):
        model.learn(data.train.of_classes(classes[start : start + 10]).first_of_each(FEW))
    last = data.train.of_classes(classes[-10:]).first_of_each(args.images)
    began = time.perf_counter()
    model.learn(last)
    whole = time.perf_counter() - began
    epochs = [entry["seconds"] for entry in model.history if entry["call"] == model.calls - 1]
    tested = data.test.first_of_each(TESTED).pictures
    model.predict(tested)
    began = time.perf_counter()
    passes = [answer.passes for answer in model.predict(tested)]
    predicting = time.perf_counter() - began
    return {
        "training_images_per_second": len(last) / epochs[-1] if epochs else None,
        "rest_seconds": whole - sum(epochs),
        "prediction_images_per_second": len(tested) / predicting,
        "passes": sum(passes) / len(passes),
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None,
    }


def main() -> None:
    """Measure, print, write."""
    rows: dict[str, dict[str, Any]] = {}
    data = load_dataset("cifar100")
    print("| method | training images/s | rest of a task, s | prediction images/s | passes |\n|---|--:|--:|--:|--:|")
    for row in ROWS:
        if row.options.get("joint"):  # not a way to learn task by task
            continue
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        found = rows[row.label] = measured(row, data)
        trained = f"{found['training_images_per_second']:.0f}" if found["training_images_per_second"] else "-"
        cells = [trained, f"{found['rest_seconds']:.1f}", f"{found['prediction_images_per_second']:.0f}", f"{found['passes']:.0f}"]
        print(f"| {row.label} | {' | '.join(cells)} |", flush=True)
        figures = {"dataset": data.name, "images_per_class": args.images, "backbone": backbone_title(args.backbone), "rows": rows}
        save(Path(SPEED_FILE).stem, figures, args.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=250, help="of each class of the last task")
    parser.add_argument("--out", type=Path, default=RESULTS.parents[1] / "docs" / "reproduced" / "cells")
    args = parser.parse_args()
    main()
