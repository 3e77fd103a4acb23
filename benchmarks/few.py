"""Ten images of each class: CIFAR-100 in ten tasks, our default and its nearest rivals, tested on all test images.

    python benchmarks/few.py --backbone deit_tiny_patch16_224.safetensors      # prints a table, writes benchmarks/results/few.json

Preset `budget`, nothing tuned for few images. The images of a class are its first ones; orders are seeds, as everywhere. Runs that
stand in the file under the same conditions and options are kept, so that orders and rows can be added.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from measuring import RESULTS, save

from caprompt import ContinualClassifier
from caprompt.data import Dataset, load_dataset
from caprompt.data.tasks import class_order
from caprompt.experiments.config import build_run_config, preset_settings
from caprompt.reproduce.evidence import Row
from caprompt.reproduce.page import few_section
from caprompt.reproduce.scales import backbone_title
from caprompt.reproduce.targets.class_orders import RIVALS

NAME = "few"


def accuracy(row: Row, seed: int, data: Dataset) -> float:
    """ACC after the last task, in percent."""
    given = {"method": row.method, "backbone": args.backbone, **row.options}
    options = build_run_config({**preset_settings("budget", given), **given}).options
    model = ContinualClassifier(row.method, args.backbone, seed=seed, **options)
    order = class_order(data.train.classes, "shuffled", seed)
    few = data.train.first_of_each(args.images)
    for start in range(0, len(order), 10):
        model.learn(few.of_classes(order[start : start + 10]))
    return model.evaluate(data.test).average_accuracy


def main() -> None:
    """Measure what is missing, print, write."""
    path = args.out / f"{NAME}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    conditions = {"dataset": "cifar100", "images_per_class": args.images, "backbone": backbone_title(args.backbone)}
    settings = {row.label: {"method": row.method, **row.options} for row in RIVALS}
    known = before["settings"] if conditions.items() <= before.items() else {}
    rows: dict[str, dict[str, float]] = {label: before["rows"][label] for label in known if known[label] == settings.get(label)}
    data = load_dataset("cifar100")
    wanted = [row for row in RIVALS if not args.rows or row.label in args.rows]
    for seed, row in [(seed, row) for seed in args.orders for row in reversed(wanted)]:
        found = rows.setdefault(row.label, {})
        if str(seed) not in found:
            found[str(seed)] = accuracy(row, seed, data)
            save(NAME, {**conditions, "settings": {label: settings[label] for label in rows}, "rows": rows}, args.out)
    print(few_section(path))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="deit_tiny_patch16_224.fb_in1k")
    parser.add_argument("--images", type=int, default=10, help="of each class")
    parser.add_argument("--orders", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", help="by their names; all of them where none is given")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    main()
