"""How strong a regression on few images should be: fixed strengths beside the one that left-out images select.

    python benchmarks/strength.py --data cars/ cifar100 --backbone vit_mini_patch8_64.tin200_distilled --images 2 5 10 --classes 14

`--data NAME` is a data set's name, or a folder with `train` and `test`. Training images only: a draw takes `--classes` random
classes, of which some images are learned and the others predicted, from the views that CAPrompt fits its regression to
(`benchmarks/views.py` has the features). The classes come in tasks of `--task`, and the images of each task add to the evidence by
which `methods/components/strength.py` selects the strength of the regression on all of them. Columns: accuracies in percent, means
over draws, of the nearest class mean, of each strength, of the strength that is selected, and of the best one of each draw, which
nobody knows beforehand. Appended to `--log`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from _common import ROOT
from selection import list_views
from torch import Tensor
from views import USUAL, WHOLE, Views, extract, predict, rank_images

from caprompt.methods.components.strength import STRENGTHS, choose_images, make_evidence, select_strength

COLUMNS = ("nearest class mean", *(f"{strength:g}" for strength in STRENGTHS), "selected", "best")


def measure(views: Views, labels: Tensor, count: int, task_size: int, width: int, generator: torch.Generator) -> list[float]:
    """Return the accuracies of one draw in percent, a column each; all classes are learned from `count` images.

    The nearest class mean reads the last block alone, the last `width` features.
    """
    num_classes, rank = int(labels.max()) + 1, rank_images(labels, generator)
    train, test = (rank < count).nonzero()[:, 0], (rank >= count).nonzero()[:, 0]
    keys = list(views)
    evidence = torch.zeros(3, len(STRENGTHS), dtype=torch.float64)
    for first in range(0, num_classes, task_size):
        own = train[(labels[train] >= first) & (labels[train] < first + task_size)]
        own = own[choose_images(labels[own], len(keys), generator)]
        if len(own):
            evidence += make_evidence([views[key][own] for key in keys], labels[own].unique(return_inverse=True)[1])
    learned, tested = torch.cat([views[key][train] for key in keys]), views[keys[0]]
    targets = labels[train].repeat(len(keys))
    guesses = [predict(learned, targets, tested[test], num_classes, strength * len(keys)) for strength in STRENGTHS]
    accuracies = [100 * float((guess == labels[test]).double().mean()) for guess in guesses]
    unit = F.normalize(tested[:, -width:], dim=1)
    means = torch.stack([unit[train][labels[train] == label].mean(dim=0) for label in range(num_classes)])
    nearest = (unit[test] @ F.normalize(means, dim=1).T).argmax(dim=1)
    selected = accuracies[STRENGTHS.index(select_strength(evidence))]
    return [100 * float((nearest == labels[test]).double().mean()), *accuracies, selected, max(accuracies)]


def draw_classes(views: Views, labels: Tensor, count: int, generator: torch.Generator) -> tuple[Views, Tensor]:
    """Return the images of some random classes, numbered anew."""
    chosen = torch.randperm(int(labels.max()) + 1, generator=generator)[:count]
    number = torch.full((int(labels.max()) + 1,), -1).scatter(0, chosen, torch.arange(len(chosen)))
    own = (number[labels] >= 0).nonzero()[:, 0]
    return {key: features[own] for key, features in views.items()}, number[labels[own]]


def main() -> None:
    """Measure, print, append to the log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100"], metavar="NAME")
    parser.add_argument("--backbone", default="vit_mini_patch8_64.tin200_distilled")
    parser.add_argument("--blocks", type=int, default=1, help="last blocks whose class tokens are read")
    parser.add_argument("--whole", action="store_true", help="read images whole")
    parser.add_argument("--images", nargs="+", type=int, default=[2, 5, 10], help="of each class that are learned")
    parser.add_argument("--per-class", type=int, default=20, help="of each class that are learned or predicted")
    parser.add_argument("--classes", type=int, default=14, help="of each draw")
    parser.add_argument("--task", type=int, default=7, help="classes of a task")
    parser.add_argument("--from-classes", type=int, help="of which the draws are made (default: all)")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "search" / "strength.txt")
    args = parser.parse_args()
    lines = [f"| data | backbone | blocks | classes | images | {' | '.join(COLUMNS)} |", f"|{'---|' * (5 + len(COLUMNS))}"]
    keys = list_views(WHOLE if args.whole else USUAL)
    for dataset in args.data:
        found, labels = extract(dataset, args.backbone, args.per_class, args.from_classes, sorted({crop for crop, _ in keys}))
        views, width = {key: found[key][:, -args.blocks :].flatten(1) for key in keys}, found[keys[0]].shape[2]
        for count in args.images:
            drawn = []
            for draw in range(args.draws):
                generator = torch.Generator().manual_seed(draw)
                drawn.append(measure(*draw_classes(views, labels, args.classes, generator), count, args.task, width, generator))
            place = f"{Path(dataset).name} | {Path(args.backbone).stem} | {args.blocks} | {args.classes} | {count}"
            lines.append(f"| {place} | {' | '.join(f'{each:.1f}' for each in torch.tensor(drawn).mean(dim=0).tolist())} |")
            print(lines[-1], flush=True)
    with args.log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
