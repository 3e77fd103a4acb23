"""Choosing settings on validation images: one CAPrompt run, then what options that only concern prediction make of it.

    python benchmarks/tuning.py --backbone deit_tiny_patch16_224.safetensors --set learning_rate=3e-3
    python benchmarks/tuning.py ... --sweep ridge_scale=10,20,40 cycles=1,2,3

CIFAR-100 in 10 tasks by default; a tenth of the training images is held out and tested on, test images are not read. Prints a line
for the run and one for each swept value, and appends them to `--log` as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from caprompt import ContinualClassifier
from caprompt.cli import arguments
from caprompt.data import load_dataset
from caprompt.experiments.config import build_run_config, preset_settings
from caprompt.experiments.execution import load_splits, run_experiment
from caprompt.metrics import incremental_accuracies

USUAL = {"dataset": "cifar100", "epochs": 8, "batch_size": 64, "validation": 0.1, "seed": 11}


def main() -> None:
    """Run, sweep, print, log."""
    given = {**USUAL, "backbone": args.backbone, **arguments.collect_settings(None, args.set)}
    config = build_run_config({**preset_settings(args.preset, given), **given})
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(config, Path(folder) / "run")
        model = ContinualClassifier.load(Path(folder) / "run" / "model")
    curve = [round(accuracy, 1) for accuracy in incremental_accuracies(results.matrix)]
    figures = {key: round(results.summary()[key], 2) for key in ("ACC", "AF", "task_identification")}
    tell({"set": args.set, "seed": config.seed, **figures, "curve": curve, "seconds": round(time.perf_counter() - began)})
    _, held_out = load_splits(load_dataset(config.dataset), config, skip_bad=False)
    for text in args.sweep:
        name, _, values = text.partition("=")
        for value in values.split(","):
            found = model.evaluate(held_out, **{name: arguments.parse_value(value)})
            tell({name: value, "ACC": round(found.average_accuracy, 2), "task_identification": round(found.task_identification, 2)})


def tell(line: dict[str, Any]) -> None:
    """Print a line and log it."""
    text = json.dumps(line)
    print(text, flush=True)
    if args.log:
        with args.log.open("a", encoding="utf-8") as log:
            log.write(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sweep", nargs="*", default=[], metavar="KEY=VALUE,VALUE")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    main()
