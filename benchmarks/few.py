"""Ten images of each class: CIFAR-100 in ten tasks, our default and its closest rivals, tested on all test images.

    python benchmarks/few.py --backbone deit_tiny_patch16_224.safetensors      # prints a table, writes results/accuracy/few.json

Preset `budget`, nothing tuned for few images. The images of a class are its first ones; class orders are seeds. Runs in the file
with the same conditions and options are kept, so that orders and rows can be added.
"""

from __future__ import annotations

import argparse
import json
import runpy
from pathlib import Path

from _common import ACCURACY, ROOT, save

from caprompt import ContinualClassifier
from caprompt.data import Dataset, load_dataset
from caprompt.data.tasks import order_classes
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.reproduce.evidence import Row
from caprompt.reproduce.scales import format_backbone_title
from caprompt.reproduce.targets.class_orders import RIVALS

NAME = "few"


def measure(row: Row, seed: int, data: Dataset) -> float:
    """Return ACC after the last task, in percent."""
    overrides = {"method": row.method, "backbone": args.backbone, **row.options}
    options = build_run_config({**load_preset_settings("budget", overrides), **overrides}).options
    model = ContinualClassifier(row.method, args.backbone, seed=seed, **options)
    order = order_classes(data.train.classes, "shuffled", seed)
    few = data.train.select_per_class(args.images)
    for start in range(0, len(order), 10):
        model.learn(few.select_classes(order[start : start + 10]))
    return model.evaluate(data.test).average_accuracy


def main() -> None:
    """Measure what is missing, print, write."""
    path = args.out / f"{NAME}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    conditions = {"dataset": "cifar100", "images_per_class": args.images, "backbone": format_backbone_title(args.backbone)}
    settings = {row.label: {"method": row.method, **row.options} for row in RIVALS}
    known = before["settings"] if conditions.items() <= before.items() else {}
    rows: dict[str, dict[str, float]] = {label: before["rows"][label] for label in known if known[label] == settings.get(label)}
    data = load_dataset("cifar100")
    selected = [row for row in RIVALS if not args.rows or row.label in args.rows]
    for seed, row in [(seed, row) for seed in args.orders for row in reversed(selected)]:
        own = rows.setdefault(row.label, {})
        if str(seed) not in own:
            own[str(seed)] = measure(row, seed, data)
            save(NAME, {**conditions, "settings": {label: settings[label] for label in rows}, "rows": rows}, args.out, data)
    print(runpy.run_path(str(ROOT / "tools" / "results_page.py"))["format_few"](path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=10, help="of each class")
    parser.add_argument("--orders", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", help="labels of rows; default: all")
    parser.add_argument("--out", type=Path, default=ACCURACY)
    args = parser.parse_args()
    main()
