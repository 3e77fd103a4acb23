"""How the number of blocks to read should be selected, and which crop suits prediction: both compared on frozen features.

    python benchmarks/selection.py --data cars/=7 cifar100=10 --backbone vit_mini_patch8_64.tin200_distilled --images 2 5

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. Training images only: of `--per-class` images of each
class, some are learned and the others predicted. All classes are learned at once from all views that CAPrompt fits its regression
to (`benchmarks/views.py` has the regression). A draw is of images and of an order of classes, of which those of the first task
select the number of blocks, by their left-out error: more than the last one if that is better by a standard error, or fewer than
half of all if that is better by a standard error. Columns: accuracies in percent, means over draws, for the usual crop and for
whole images. Appended to `--log`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from _common import ROOT
from torch import Tensor
from views import STRENGTH, USUAL, WHOLE, Views, extract, predict, rank_images

from caprompt.methods.caprompt.classifier import ZOOM
from caprompt.methods.components.readout import compute_left_out_errors, find_lowest, list_candidates

CROPS = {"0.875": USUAL, "whole": WHOLE}
COLUMNS = ("last block", "half", "more if better", "fewer if better")


def list_views(crop: float) -> list[tuple[float, bool]]:
    """Return the views of an image that is predicted with this crop: as there, whole, and narrower, and mirrored."""
    crops = [crop, *(share for share in (WHOLE, round(ZOOM * crop, 3)) if share != crop)]
    return [(each, mirrored) for each in crops for mirrored in (False, True)]


def measure(
    views: Views, labels: Tensor, count: int, tasks: int, candidates: Sequence[int], generator: torch.Generator
) -> list[float]:
    """Return the accuracies of one draw in percent: all columns for each crop."""
    num_classes, rank = int(labels.max()) + 1, rank_images(labels, generator)
    train, test = (rank < count).nonzero()[:, 0], (rank >= count).nonzero()[:, 0]
    first_task = torch.randperm(num_classes, generator=generator)[: num_classes // tasks]
    own = train[torch.isin(labels[train], first_task)]
    targets = labels[own].unique(return_inverse=True)[1]
    found: list[float] = []
    for crop in CROPS.values():
        used, accuracies, errors = list_views(crop), [], []
        for blocks in candidates:
            tokens = views[crop, False][:, -blocks:].flatten(1)
            learned = torch.cat([views[key][train, -blocks:].flatten(1) for key in used])
            guess = predict(learned, labels[train].repeat(len(used)), tokens[test], num_classes)
            accuracies.append(100 * float((guess == labels[test]).double().mean()))
            errors.append(compute_left_out_errors(tokens[own] @ tokens[own].T, targets, STRENGTH))
        more, fewer = find_lowest(errors), len(candidates) - 1 - find_lowest(errors[::-1])
        if count == 1:  # without its only image, a class is unknown
            more = fewer = 0
        found += [accuracies[0], accuracies[-1], accuracies[more], accuracies[fewer]]
    return found


def main() -> None:
    """Measure, print, append to the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100=10"], metavar="NAME=TASKS")
    parser.add_argument("--backbone", default="vit_mini_patch8_64.tin200_distilled")
    parser.add_argument("--images", nargs="+", type=int, default=[2, 5], help="of each class that are learned")
    parser.add_argument("--per-class", type=int, default=25, help="of each class that are learned or predicted")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "selection.txt")
    args = parser.parse_args()
    columns = [f"{crop}: {column}" for crop in CROPS for column in COLUMNS]
    lines = [f"| data | backbone | classes | images | {' | '.join(columns)} |", f"|{'---|' * (4 + len(columns))}"]
    crops = sorted({crop for each in CROPS.values() for crop, _ in list_views(each)})
    for data in args.data:
        dataset, _, tasks = data.partition("=")
        views, labels = extract(dataset, args.backbone, args.per_class, args.classes, crops)
        candidates = [each for each in list_candidates(2 * views[USUAL, False].shape[1]) if each <= views[USUAL, False].shape[1]]
        for count in args.images:
            drawn = [
                measure(views, labels, count, int(tasks), candidates, torch.Generator().manual_seed(draw))
                for draw in range(args.draws)
            ]
            means = torch.tensor(drawn).mean(dim=0).tolist()
            place = f"{Path(dataset).name} | {Path(args.backbone).stem} | {int(labels.max()) + 1} | {count}"
            lines.append(f"| {place} | {' | '.join(f'{each:.1f}' for each in means)} |")
            print(lines[-1], flush=True)
    with args.log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
