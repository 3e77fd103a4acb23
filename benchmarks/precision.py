"""Does the fast path learn as well? The same runs of the default in bfloat16 and in float32, with several seeds.

    python benchmarks/precision.py --backbone deit_tiny_patch16_224.safetensors    # prints a table, writes results/precision.json

CIFAR-100 in ten tasks, classes in their natural order, preset `budget`, the first `--images` of each class to learn and to be
tested on (100 are all that a class has to test on). What differs from seed to seed in one precision is the noise that the
difference between the two has to be seen against.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from measuring import RESULTS, save
from page import precision

from caprompt.experiments.config import build_run_config, preset_settings
from caprompt.experiments.execution import run_experiment
from caprompt.reproduce.scales import backbone_title


def measured(kind: str, seed: int) -> dict[str, Any]:
    """One run: its figures after the last task, and the time that learning took."""
    given = {"dataset": "cifar100", "backbone": args.backbone, "order": "natural", "seed": seed, "per_class": args.images}
    config = build_run_config({**preset_settings("budget", given), **given, "precision": kind})
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(config, (args.folder or Path(folder)) / f"{kind}-{seed}")
    summary = results.summary()
    figures = {name: summary[name] for name in ("ACC", "AF", "task_identification")}
    return {"precision": kind, "seed": seed, **figures, "seconds": sum(task.seconds for task in results.rows)}


def main() -> None:
    """Measure, print, write."""
    figures: dict[str, Any] = {"backbone": backbone_title(args.backbone), "images_per_class": args.images, "rows": []}
    for seed in args.seeds:
        for kind in args.precisions:
            figures["rows"].append(measured(kind, seed))
            save("precision", figures, args.out)
    print(precision(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=100, help="of each class, to learn and to be tested on")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--folder", type=Path, help="where the runs are kept, with their models")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    main()
