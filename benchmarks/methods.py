"""Speed of every method: training and prediction, one method after another on an otherwise idle device.

    python benchmarks/methods.py --backbone deit_tiny_patch16_224.safetensors            # writes results/speed/speeds.json
    python benchmarks/methods.py --backbone ... --out reproduced/cells            # for your own `caprompt reproduce`

The comparison of all methods on docs/results.md shows these speeds.

CIFAR-100. Nine tasks of ten classes with a few images each come first, so that everything is as large as late in a run; then ten
classes with `--images` each are learned for three epochs with the preset `budget`, of which the last one is timed, and test images
of all classes are predicted. `rest` is the time of that task outside its epochs: passes before training, statistics, alignment,
regressions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from _common import SPEED, save

from caprompt import ContinualClassifier
from caprompt.data import Dataset, load_dataset
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.reproduce.evidence import Row
from caprompt.reproduce.scales import format_backbone_title
from caprompt.reproduce.targets.comparison import ROWS, SPEED_FILE

EPOCHS = 3
FEW = 4  # training images of each class of the earlier tasks
TESTED = 25  # test images of each class


def measure(row: Row, data: Dataset) -> dict[str, Any]:
    """Learn, time the last epoch and the rest of the last task; predict twice and time the second call."""
    overrides = {"method": row.method, "backbone": args.backbone, **row.options, "epochs": EPOCHS}
    options = build_run_config({**load_preset_settings("budget", overrides), **overrides}).options
    model = ContinualClassifier(row.method, args.backbone, **options)
    classes = data.train.classes
    for start in range(0, len(classes) - 10, 10):
        model.learn(data.train.select_classes(classes[start : start + 10]).select_per_class(FEW))
    last = data.train.select_classes(classes[-10:]).select_per_class(args.images)
    start_time = time.perf_counter()
    model.learn(last)
    whole = time.perf_counter() - start_time
    epochs = [entry["seconds"] for entry in model.history if entry["call"] == model.num_calls - 1]
    tested = data.test.select_per_class(TESTED).images
    model.predict(tested)
    start_time = time.perf_counter()
    passes = [prediction.passes for prediction in model.predict(tested)]
    prediction_seconds = time.perf_counter() - start_time
    return {
        "training_images_per_second": len(last) / epochs[-1] if epochs else None,
        "rest_seconds": whole - sum(epochs),
        "prediction_images_per_second": len(tested) / prediction_seconds,
        "passes": sum(passes) / len(passes),
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None,
    }


def main() -> None:
    """Measure, print, write."""
    rows: dict[str, dict[str, Any]] = {}
    data = load_dataset("cifar100")
    print("| method | training images/s | rest of a task, s | prediction images/s | passes |\n|---|--:|--:|--:|--:|")
    for row in ROWS:
        if row.options.get("joint"):  # not class-incremental
            continue
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        result = rows[row.label] = measure(row, data)
        trained = f"{result['training_images_per_second']:.0f}" if result["training_images_per_second"] else "-"
        cells = [
            trained,
            f"{result['rest_seconds']:.1f}",
            f"{result['prediction_images_per_second']:.0f}",
            f"{result['passes']:.0f}",
        ]
        print(f"| {row.label} | {' | '.join(cells)} |", flush=True)
        document = {
            "dataset": data.name,
            "images_per_class": args.images,
            "backbone": format_backbone_title(args.backbone),
            "rows": rows,
        }
        save(Path(SPEED_FILE).stem, document, args.out, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=250, help="of each class of the last task")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
