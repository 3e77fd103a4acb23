"""Selection of settings on validation images: one CAPrompt run, then a sweep of options that only affect prediction.

    python benchmarks/tuning.py --backbone deit_tiny_patch16_224.safetensors --set learning_rate=3e-3
    python benchmarks/tuning.py ... --sweep ridge_scale=10,20,40 cycles=1,2,3

CIFAR-100 in 10 tasks by default; a tenth of the training images is held out for validation, test images are not read. Prints a line
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
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.experiments.execution import load_test_images, run_experiment
from caprompt.metrics import incremental_accuracies

DEFAULTS = {"dataset": "cifar100", "epochs": 8, "batch_size": 64, "validation": 0.1, "seed": 11}


def main() -> None:
    """Run, sweep, print, log."""
    overrides = {**DEFAULTS, "backbone": args.backbone, **arguments.collect_settings(None, args.set)}
    config = build_run_config({**load_preset_settings(args.preset, overrides), **overrides})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(config, Path(folder) / "run")
        model = ContinualClassifier.load(Path(folder) / "run" / "model")
    curve = [round(accuracy, 1) for accuracy in incremental_accuracies(results.matrix)]
    metrics = {key: round(results.summary()[key], 2) for key in ("ACC", "AF", "task_identification")}
    log({"set": args.set, "seed": config.seed, **metrics, "curve": curve, "seconds": round(time.perf_counter() - start)})
    validation = load_test_images(config)
    for text in args.sweep:
        name, _, values = text.partition("=")
        for value in values.split(","):
            evaluation = model.evaluate(validation, **{name: arguments.parse_value(value)})
            log(
                {
                    name: value,
                    "ACC": round(evaluation.average_accuracy, 2),
                    "task_identification": round(evaluation.task_identification, 2),
                }
            )


def log(line: dict[str, Any]) -> None:
    """Print a line and append it to the log file."""
    text = json.dumps(line)
    print(text, flush=True)
    if args.log:
        with args.log.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sweep", nargs="*", default=[], metavar="KEY=VALUE,VALUE")
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    main()
