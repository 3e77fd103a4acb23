"""What growth costs: CAPrompt's step and prediction against the number of tasks and classes, statistics per class, alignment.

    python benchmarks/growth.py                      # prints tables, writes benchmarks/results/growth.json and docs/growth.png

ViT-B/16, bfloat16, on a GPU; with `--tiny`, a small ViT on any machine, to see that the script runs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from measuring import BASE, RESULTS, batch, caprompt, median_seconds, save
from page import growth

from caprompt.backbones.vit import ViTConfig
from caprompt.engine.inference import Predictor
from caprompt.engine.trainer import TrainingStep, build_optimizer
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.heads import LinearHead
from caprompt.utils.cuda_graphs import capture

TINY = ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=2, mlp_width=128)
KINDS = ("mean", "variance", "multi-centroid", "low-rank", "covariance")


def at(tasks: int, classes: int) -> dict[str, Any]:
    """Milliseconds of a training step and of a prediction, with so many tasks of so many classes in all."""
    method = caprompt(DEVICE, DTYPE, tasks, classes=max(1, classes // tasks), config=CONFIG)
    images, labels = batch(method, args.batch)
    step = capture(TrainingStep(method, build_optimizer(method)), DEVICE)
    ask = Predictor(method, args.batch)
    found = {
        "tasks": tasks,
        "classes": method.num_classes,
        "step_ms": 1e3 * median_seconds(lambda: step(images, labels), args.repeats),
    }
    return {**found, "prediction_ms": 1e3 * median_seconds(lambda: ask.together(images), args.repeats)}


def time_alignment(classes: int) -> dict[str, Any]:
    """Seconds of one alignment of the head at the default options, with statistics of random features."""
    options = ReplayOptions(batch_size=24)
    statistics = alignment.build_statistics(options, CONFIG.width).to(DEVICE)
    statistics.grow(classes)
    chance = torch.Generator().manual_seed(0)
    for label in range(classes):
        features = torch.randn(50, CONFIG.width, generator=chance).double() + label
        statistics.observe(label, features.to(DEVICE))
    head = LinearHead(CONFIG.width)
    head.grow(classes, chance)
    head.to(DEVICE)
    began = time.perf_counter()
    alignment.align_head(head, statistics, options, classes - 10, chance)
    float(head.weight.detach().sum())
    return {"classes": classes, "width": CONFIG.width, "seconds": time.perf_counter() - began}


def bytes_per_class() -> dict[str, int]:
    """What each kind of statistics keeps of a class."""
    made = {kind: alignment.build_statistics(ReplayOptions(replay=kind), CONFIG.width) for kind in KINDS}
    return {kind: statistics.bytes_per_class() for kind, statistics in made.items()}


def draw(by_tasks: list[dict[str, Any]], by_classes: list[dict[str, Any]], path: Path) -> None:
    """Step and prediction, relative to the smallest, against tasks and against classes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), dpi=160, layout="constrained")
    for axes, rows, name in zip(figure.subplots(1, 2), (by_tasks, by_classes), ("tasks", "classes"), strict=True):
        for key, marker, label in (("step_ms", "o", "training step"), ("prediction_ms", "s", "prediction")):
            axes.plot([row[name] for row in rows], [row[key] / rows[0][key] for row in rows], marker=marker, label=label)
        axes.set(xscale="log", xlabel=name, ylabel=f"time, relative to {rows[0][name]} {name}", ylim=(0, None))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Measure, print, write."""
    by_tasks = [at(tasks, 400) for tasks in args.tasks]
    by_classes = [at(10, classes) for classes in args.classes]
    figures = {"batch": args.batch, "by_tasks": by_tasks, "by_classes": by_classes, "alignment": time_alignment(100)}
    figures["bytes_per_class"] = bytes_per_class()
    print(growth(figures))
    save("growth", figures, args.out)
    draw(by_tasks, by_classes, args.picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tasks", nargs="+", type=int, default=[2, 10, 50, 100, 200])
    parser.add_argument("--classes", nargs="+", type=int, default=[10, 100, 1000, 10_000])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=RESULTS.parent.parent / "docs" / "growth.png")
    args = parser.parse_args()
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    CONFIG = TINY if args.tiny else BASE
    main()
