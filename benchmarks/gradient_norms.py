"""Gradient norms of every trained method's first steps without clipping, in its first and its second task.

    python benchmarks/gradient_norms.py --steps 10 --batch 16     # prints a table, writes results/accuracy/gradient_norms.json

Preset `budget` with clip=0. A task is ten classes and one epoch of as many images as the steps need. The table is that of
docs/baselines.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import ACCURACY, save

from caprompt import ContinualClassifier
from caprompt.callbacks.events import Consolidating, Event, StepEnded
from caprompt.data import Dataset, load_dataset
from caprompt.data.tasks import order_classes
from caprompt.engine.training_step import get_trainable_parameters
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.methods import get_method, list_methods
from caprompt.reproduce.scales import format_backbone_title

NAME = "gradient_norms"
CLASSES = 10  # of a task
# A regression after the first task is slow to solve on a CPU in its full width, and hardly matters for the gradients of the second.
NARROW = {"projections": 1_000}


class _MeasuredError(Exception):
    """Raised by a callback when all steps have been measured, since nothing after them is needed."""


def build_model(method: str) -> ContinualClassifier:
    """Build a model of a method under the preset, without clipping."""
    overrides = {"method": method, "dataset": args.dataset, "backbone": args.backbone}
    options = build_run_config({**load_preset_settings("budget", overrides), **overrides}).options
    narrow = {name: value for name, value in NARROW.items() if name in get_method(method).options_class.model_fields}
    measured = {"clip": 0.0, "epochs": 1, "batch_size": args.batch, **narrow}
    return ContinualClassifier(method, args.backbone, device=args.device, **{**options, **measured})


def measure(method: str, data: Dataset) -> list[dict[str, float]]:
    """Return the median and the 90th percentile of the norms in each task; empty for a task that is not trained."""
    model = build_model(method)
    order = order_classes(data.train.classes, "shuffled", seed=0)
    images = data.train.select_per_class(math.ceil(args.steps * args.batch / CLASSES))
    rows: list[dict[str, float]] = []
    for task in range(2):
        norms: list[float] = []

        def record(event: Event, norms: list[float] = norms, is_last: bool = task == 1) -> None:
            if isinstance(event, StepEnded) and len(norms) < args.steps:
                gradients = [parameter.grad for parameter in get_trainable_parameters(model.method) if parameter.grad is not None]
                norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
            if is_last and isinstance(event, Consolidating):
                raise _MeasuredError

        with suppress(_MeasuredError):
            model.learn(images.select_classes(order[CLASSES * task : CLASSES * (task + 1)]), callbacks=record)
        rows.append({"median": float(np.median(norms)), "p90": float(np.quantile(norms, 0.9))} if norms else {})
    return rows


def format_table(rows: dict[str, list[dict[str, float]]]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| method | first task: median, 90 % | second task: median, 90 % |", "|---|--:|--:|"]
    for method, tasks in rows.items():
        cells = [f"{task['median']:.2f}, {task['p90']:.2f}" if task else "not trained" for task in tasks]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def list_trained_methods(names: Sequence[str]) -> list[str]:
    """Return these methods, or all that train anything."""
    return list(names) or [name for name in list_methods() if name != "ncm"]


def main() -> None:
    """Measure, print, write."""
    data = load_dataset(args.dataset)
    rows: dict[str, list[dict[str, float]]] = {}
    conditions: dict[str, Any] = {"dataset": args.dataset, "backbone": format_backbone_title(args.backbone), "preset": "budget"}
    for method in list_trained_methods(args.methods):
        rows[method] = measure(method, data)
        save(NAME, {**conditions, "steps": args.steps, "batch_size": args.batch, "rows": rows}, args.out, data)
    print(format_table(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.safetensors")
    parser.add_argument("--steps", type=int, default=50, help="training steps of a task")
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--device", default="cpu", help="on a GPU, captured steps do not keep their gradients")
    parser.add_argument("--methods", nargs="+", default=[], help="default: all that are trained")
    parser.add_argument("--out", type=Path, default=ACCURACY)
    args = parser.parse_args()
    main()
