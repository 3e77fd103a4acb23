"""How the first task's images should select the blocks to read and the crop at prediction: rules compared on frozen features.

    python benchmarks/selection.py --data cars/=7 cifar100=10 --backbone vit_mini_patch8_64.tin200_distilled --images 2 5

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. Training images only: of `--per-class` images of each
class, some are learned and the others predicted. All classes are learned at once from all views that CAPrompt fits its regression
to (`benchmarks/views.py` has the regression). A draw is of images and of an order of classes, of which the first task's select.
A rule asks that the candidate of lowest left-out error gains more than so many standard errors over the first candidate: the last
block alone, and the usual crop. Columns are the accuracies of what the rules select, that of the first candidates, and that of the
best of all candidates; means over draws, in percent. Appended to `--log`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from _common import ROOT
from torch import Tensor
from views import STRENGTH, USUAL, WHOLE, Views, extract, predict

from caprompt.methods.caprompt import ZOOM
from caprompt.methods.components.readout import compute_left_out_errors, list_candidates

RULES = (0.0, 0.5, 1.0, 2.0)  # standard errors
CROPS = (USUAL, WHOLE)


def list_views(crop: float) -> list[tuple[float, bool]]:
    """Return the views of an image that is predicted with this crop: as there, whole, and narrower, and mirrored."""
    crops = [crop, *(share for share in (WHOLE, round(ZOOM * crop, 3)) if share != crop)]
    return [(each, mirrored) for each in crops for mirrored in (False, True)]


def rank_images(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rank of each image among those of its class, in a random order: (n,)."""
    order, rank = torch.randperm(len(labels), generator=generator), torch.empty_like(labels)
    for name in labels.unique():
        own = order[labels[order] == name]
        rank[own] = torch.arange(len(own))
    return rank


def find_lowest(errors: Sequence[Tensor], rule: float) -> int:
    """Return the position of the lowest mean error (n,), or 0 if that gains no more than so many standard errors."""
    best = min(range(len(errors)), key=lambda position: float(errors[position].mean()))
    gain = errors[0] - errors[best]
    return best if gain.mean() > rule * gain.std() / math.sqrt(len(gain)) else 0


def measure(
    views: Views, labels: Tensor, count: int, tasks: int, candidates: Sequence[int], generator: torch.Generator
) -> list[float]:
    """Return the accuracies of one draw in percent: of each rule, of the first candidates, of the best."""
    num_classes = int(labels.max()) + 1
    rank = rank_images(labels, generator)
    train, test = (rank < count).nonzero()[:, 0], (rank >= count).nonzero()[:, 0]
    first_task = torch.randperm(num_classes, generator=generator)[: num_classes // tasks]
    own = train[torch.isin(labels[train], first_task)]
    targets = labels[own].unique(return_inverse=True)[1]
    errors = {
        (crop, blocks): compute_left_out_errors(tokens @ tokens.T, targets, STRENGTH)
        for crop in CROPS
        for blocks in candidates
        for tokens in [views[crop, False][own, -blocks:].flatten(1)]
    }
    accuracies: dict[tuple[float, int], float] = {}
    for crop in CROPS:
        used = list_views(crop)
        for blocks in candidates:
            learned = torch.cat([views[key][train, -blocks:].flatten(1) for key in used])
            tested = views[crop, False][test, -blocks:].flatten(1)
            guess = predict(learned, labels[train].repeat(len(used)), tested, num_classes)
            accuracies[crop, blocks] = 100 * float((guess == labels[test]).double().mean())
    selected = []
    for rule in RULES:
        crop = CROPS[find_lowest([errors[each, candidates[0]] for each in CROPS], rule)]
        selected.append((crop, candidates[find_lowest([errors[crop, blocks] for blocks in candidates], rule)]))
    return [*(accuracies[each] for each in selected), accuracies[CROPS[0], candidates[0]], max(accuracies.values())]


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
    columns = [*(f"{rule:g} s.e." for rule in RULES), "last block, usual crop", "best"]
    lines = [f"| data | backbone | classes | images | {' | '.join(columns)} |", f"|{'---|' * (4 + len(columns))}"]
    crops = sorted({crop for each in CROPS for crop, _ in list_views(each)})
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
