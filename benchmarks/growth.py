"""Cost of growth: CAPrompt's step and prediction by number of tasks and classes, statistics per class, alignment.

    python benchmarks/growth.py                      # prints tables, writes results/speed/growth.json and docs/growth.png

ViT-B/16, bfloat16, on a GPU; with `--tiny`, a small ViT on any machine, to test the script.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from _common import BASE, ROOT, SPEED, build_caprompt, make_batch, median_seconds, print_table, save

from caprompt.backbones.vit import ViTConfig
from caprompt.engine.inference import Predictor
from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep
from caprompt.methods.components import alignment
from caprompt.methods.components.alignment import ReplayOptions
from caprompt.methods.components.heads import LinearHead
from caprompt.utils.cuda_graphs import capture

TINY = ViTConfig(image_size=32, patch_size=8, width=64, depth=2, heads=2, mlp_width=128)
KINDS = ("mean", "variance", "multi-centroid", "low-rank", "covariance")


def measure(tasks: int, classes: int) -> dict[str, Any]:
    """Return milliseconds of a training step and of a prediction with this many tasks and classes in total."""
    method = build_caprompt(DEVICE, DTYPE, tasks, classes=max(1, classes // tasks), config=CONFIG)
    images, labels = make_batch(method, args.batch)
    step = capture(TrainingStep(method, build_optimizer(method)), DEVICE)
    predictor = Predictor(method, args.batch)
    result = {
        "tasks": tasks,
        "classes": method.num_classes,
        "step_ms": 1e3 * median_seconds(lambda: step(images, labels), args.repeats),
    }
    return {**result, "prediction_ms": 1e3 * median_seconds(lambda: predictor(images), args.repeats)}


def time_alignment(classes: int) -> dict[str, Any]:
    """Return the seconds of one alignment of the head with default options, on statistics of random features."""
    options = ReplayOptions(batch_size=24)
    statistics = alignment.build_statistics(options, CONFIG.width).to(DEVICE)
    statistics.grow(classes)
    rng = torch.Generator().manual_seed(0)
    for label in range(classes):
        features = torch.randn(50, CONFIG.width, generator=rng).double() + label
        statistics.observe(label, features.to(DEVICE))
    head = LinearHead(CONFIG.width)
    head.grow(classes, rng)
    head.to(DEVICE)
    start = time.perf_counter()
    alignment.align_head(head, statistics, options, classes - 10, rng)
    float(head.weight.detach().sum())
    return {"classes": classes, "width": CONFIG.width, "seconds": time.perf_counter() - start}


def count_bytes_per_class() -> dict[str, int]:
    """Return the bytes per class of each kind of statistics."""
    by_kind = {kind: alignment.build_statistics(ReplayOptions(replay=kind), CONFIG.width) for kind in KINDS}
    return {kind: statistics.bytes_per_class() for kind, statistics in by_kind.items()}


def plot(by_tasks: list[dict[str, Any]], by_classes: list[dict[str, Any]], path: Path) -> None:
    """Plot step and prediction, relative to the smallest, against tasks and against classes."""
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
    by_tasks = [measure(tasks, 400) for tasks in args.tasks]
    by_classes = [measure(10, classes) for classes in args.classes]
    result: dict[str, Any] = {"batch": args.batch, "by_tasks": by_tasks, "by_classes": by_classes, "alignment": time_alignment(100)}
    result["bytes_per_class"] = count_bytes_per_class()
    print_table("growth", result)
    save("growth", result, args.out)
    plot(by_tasks, by_classes, args.plot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tasks", nargs="+", type=int, default=[2, 10, 50, 100, 200])
    parser.add_argument("--classes", nargs="+", type=int, default=[10, 100, 1000, 10_000])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=SPEED)
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "growth.png")
    args = parser.parse_args()
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    CONFIG = TINY if args.tiny else BASE
    main()
