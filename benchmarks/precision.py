"""Accuracy in half precision: the same runs of CAPrompt in bfloat16 and in float32, with several seeds.

    python benchmarks/precision.py --backbone deit_tiny_patch16_224.safetensors    # writes results/speed/precision.json

CIFAR-100 in ten tasks, classes in their natural order, preset `budget`, the first `--images` of each class to learn and to be
tested on (a class has 100 test images). The spread over seeds in one precision is the noise to compare the difference between
precisions with.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from _common import SPEED, print_table, save

from caprompt.data import load_dataset
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.experiments.execution import run_experiment
from caprompt.reproduce.scales import format_backbone_title


def measure(kind: str, seed: int) -> dict[str, Any]:
    """Run once; return the metrics after the last task, and the time of learning."""
    overrides = {"dataset": "cifar100", "backbone": args.backbone, "order": "natural", "seed": seed, "per_class": args.images}
    config = build_run_config({**load_preset_settings("budget", overrides), **overrides, "precision": kind})
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(config, (args.folder or Path(folder)) / f"{kind}-{seed}")
    summary = results.summary()
    metrics = {name: summary[name] for name in ("ACC", "AF", "task_identification")}
    return {"precision": kind, "seed": seed, **metrics, "seconds": sum(task.seconds for task in results.rows)}


def main() -> None:
    """Measure, print, write."""
    data = load_dataset("cifar100")
    result: dict[str, Any] = {"backbone": format_backbone_title(args.backbone), "images_per_class": args.images, "rows": []}
    for seed in args.seeds:
        for kind in args.precisions:
            result["rows"].append(measure(kind, seed))
            save("precision", result, args.out, data)
    print_table("precision", result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=100, help="of each class, to learn and to be tested on")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--folder", type=Path, help="where to keep the runs with their models")
    parser.add_argument("--out", type=Path, default=SPEED)
    args = parser.parse_args()
    main()
