"""Whether a first task should be trained: what half of its images, or of its classes, say about it, beside what training gains.

    python benchmarks/training_gain.py --data tinyimagenet200_64px/=2 --backbones vit_mini_patch8_64.tin200_distilled --per-class 19

Small folders: `--classes` classes of a data set in some tasks (`--data NAME=TASKS`), of which a share of the training images is
tested on. For each, the default is run as it is, with a third of its epochs, and with no task or only the later ones trained; and a
prompt is trained on half of the first task's images, or classes, to compare it with none on the other half. Every line of `--log`
is a run; the last lines printed are a row for each folder: accuracies, then gains in squared error, relative to their standard
error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _common import ROOT
from _lab import Cell, OnDevice, Trial, describe, identify, plain_batches, run, run_all
from torch import Tensor

from caprompt.engine.inputs import RepeatableBatches
from caprompt.methods.caprompt import CAPrompt
from caprompt.methods.components.readout import compute_kernel, compute_left_out_errors

STRENGTH = 0.1
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "a third of the epochs": {"effort": 1 / 3},
    "all of the change": {"options": {"kept_change": 1.0}},
    "three quarters of the change": {"options": {"kept_change": 0.75}},
    "a third of the rate": {"options": {"learning_rate": 0.0067}},
    "first pass unprompted": {"options": {"first_pass": "query"}},
    "not trained": {"untrained": (0, 1)},
    "first task not trained": {"untrained": (0,)},
    "later task not trained": {"untrained": (1,)},
}
JUDGE = "judge"


def extract(trial: Trial, images: OnDevice, names: Sequence[str], prompted: bool) -> tuple[list[Tensor], Tensor]:
    """Return the features of all views of images, with the prompt or without one, and the images' classes."""
    method, targets = trial.method, images.targets(names)
    assert isinstance(method, CAPrompt)
    plain = RepeatableBatches(partial(plain_batches, images, targets, trial.evaluated), images.measure_short_side)
    run_pass = method.extract_first_features if prompted else method.extract_unprompted
    views = method.extract_views(method.list_sources(plain), run_pass)
    return [torch.cat([features for features, _ in view]).double().cpu() for view in views], torch.tensor(targets)


def compute_errors(train: Sequence[Tensor], labels: Tensor, test: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared error of a regression on r views (n, D) for other images (m, D), and whether it is right: (m,) each."""
    rows = torch.cat(list(train))
    squares, test_squares = rows.square().sum(dim=1), test.square().sum(dim=1)
    kernel = compute_kernel(rows @ rows.T, squares, squares)
    kernel.diagonal().add_(STRENGTH * len(train) * kernel.diagonal().mean())
    num_classes = int(labels.max()) + 1
    weights = torch.linalg.solve(kernel, F.one_hot(labels.repeat(len(train)), num_classes).double())
    outputs = compute_kernel(test @ rows.T, test_squares, squares) @ weights
    targets = F.one_hot(test_labels, num_classes).double()
    is_right = (outputs.argmax(dim=1) == test_labels).double()
    targets, outputs = targets - targets.mean(dim=0), outputs - outputs.mean(dim=0)
    factor = ((outputs * targets).sum() / outputs.square().sum()).clamp_min(0)
    return (targets - factor * outputs).square().sum(dim=1), is_right


def summarize(trained: Tensor, frozen: Tensor, right: Sequence[Tensor] = ()) -> dict[str, float]:
    """Return the gain of training in squared error, its standard error, and accuracies."""
    gain = frozen - trained
    summary = {"gain": float(gain.mean()), "se": float(gain.std() / math.sqrt(len(gain))), "frozen": float(frozen.mean())}
    return summary | {name: float(each.mean()) for name, each in zip(("right", "frozen right"), right, strict=False)}


def judge_by_images(cell: Cell, names: Sequence[str], train: OnDevice, test: OnDevice) -> dict[str, Any]:
    """Train on some images of a task, and predict the others."""
    trial = Trial(cell)
    trial.learn(names, train)
    errors, right, left_out = [], [], []
    for prompted in (True, False):
        views, labels = extract(trial, train, names, prompted)
        others, other_labels = extract(trial, test, names, prompted)
        error, is_right = compute_errors(views, labels, others[0], other_labels)
        errors.append(error)
        right.append(is_right)
        rows = torch.cat(others)
        left_out.append(compute_left_out_errors(rows @ rows.T, other_labels, STRENGTH, len(others)))
    return {"others": summarize(errors[0], errors[1], right), "left out": summarize(left_out[0], left_out[1])}


def judge_by_classes(cell: Cell, names: Sequence[str], train: OnDevice) -> dict[str, Any]:
    """Train on half of the classes of a task, and leave out images of the other half, and of all."""
    trial, half = Trial(cell), len(names) // 2
    trial.learn(names[:half], train.select_classes(names[:half]))
    result = {}
    for what, own in (("other half", names[half:]), ("all", names)):
        errors = []
        for prompted in (True, False):
            views, labels = extract(trial, train.select_classes(own), own, prompted)
            rows = torch.cat(views)
            errors.append(compute_left_out_errors(rows @ rows.T, labels, STRENGTH, len(views)))
        result[what] = summarize(errors[0], errors[1])
    return result


def judge(cell: Cell) -> dict[str, Any]:
    """Return all that is said about the first task."""
    start, trial = time.perf_counter(), Trial(cell)
    names = trial.tasks[0]
    own = trial.train.select_classes(names)
    seen: dict[int, int] = {}
    halves: tuple[list[int], list[int]] = ([], [])
    for index, target in zip(own.indices, own.targets(names), strict=True):
        seen[target] = seen.get(target, -1) + 1
        halves[seen[target] % 2].append(int(index))
    first, second = (OnDevice(own.images, own.labels, half) for half in halves)
    result: dict[str, Any] = {"ACC": 0.0}
    for effort in (1.0, 1 / 3):
        part = replace(cell, effort=effort)
        result[f"images, {effort:.2f}"] = [judge_by_images(part, names, a, b) for a, b in ((first, second), (second, first))]
    result["classes"] = judge_by_classes(cell, names, own)
    result["seconds"] = round(time.perf_counter() - start, 1)
    return result


def run_or_judge(cell: Cell) -> dict[str, Any]:
    """Make a run of either kind."""
    return judge(cell) if cell.label == JUDGE else run(cell)


def make_variant(base: Cell, label: str) -> Cell:
    """Return a run of the default with some changes."""
    changes = VARIANTS[label]
    return replace(base, label=label, **{**changes, "options": {**base.options, **changes.get("options", {})}})


def make_cells(args: argparse.Namespace) -> list[Cell]:
    """Return all runs, folder by folder."""
    cells = []
    for order, data, backbone, per_class in itertools.product(args.orders, args.data, args.backbones, args.per_class):
        dataset, _, tasks = data.partition("=")
        common = {"seed": order, "preset": "default", "options": {"projections": args.projections}, "classes": args.classes}
        share = args.cars_validation if "cars" in dataset else args.validation
        base = Cell(JUDGE, "caprompt", dataset, backbone, int(tasks), validation=share, per_class=per_class, **common)
        cells += [base, *(make_variant(base, label) for label in args.variants)]
    return cells


def print_rows(cells: Sequence[Cell], log: Path) -> None:
    """Print a row for each folder."""
    records = {identify(r["cell"]): r for r in map(json.loads, log.read_text(encoding="utf-8").splitlines()) if "ACC" in r}
    for cell in cells:
        judged = records.get(identify(describe(cell)))
        if cell.label != JUDGE or judged is None:
            continue
        accuracies = []
        for label in VARIANTS:
            record = records.get(identify(describe(make_variant(cell, label))))
            accuracies.append("-" if record is None else f"{record['ACC']:.1f}")
        gains = [
            fold[kind] for effort in ("1.00", "0.33") for kind in ("others", "left out") for fold in judged[f"images, {effort}"]
        ]
        gains += list(judged["classes"].values())
        shown = " ".join(f"{gain['gain'] / max(gain['se'], 1e-9):+.1f}" for gain in gains)
        place = f"{Path(cell.dataset).name[:5]} {Path(cell.backbone).stem[:6]} {cell.per_class} {cell.seed}"
        print(f"{place} | {' '.join(accuracies)} | {shown}")


def main() -> None:
    """Run what is not in the log, print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["vit_mini_patch8_64.tin200_distilled"])
    parser.add_argument("--per-class", nargs="+", type=int, default=[19])
    parser.add_argument("--classes", type=int, default=14)
    parser.add_argument("--orders", nargs="+", type=int, default=[100, 101, 102])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--validation", type=float, default=0.5)
    parser.add_argument(
        "--cars-validation", type=float, default=0.3, help="of data sets called cars, which have 28 images of a class"
    )
    parser.add_argument("--projections", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "training_gain.jsonl")
    args = parser.parse_args()
    cells = make_cells(args)
    run_all(cells, args.log, args.jobs, args.seconds, lambda cell, result: None, run_or_judge)
    print_rows(cells, args.log)


if __name__ == "__main__":
    main()
