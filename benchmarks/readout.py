"""Which blocks should a regression read? Accuracy on frozen features, and the left-out error of the first task that selects it.

    python benchmarks/readout.py --data cifar100=10 cars/=7 --backbones deit_tiny_patch16_224.safetensors

`--data NAME=TASKS` is a data set's name, or a folder with `train` and `test`. A ridge regression (strength 0.1, random rectified
projections) learns all classes at once from class tokens of the last blocks, with and without mirrored images, and is tested on
validation images of class order 100; test images are not read. In brackets is the error by which CAPrompt selects the number of
blocks: that of the images of the first task, each left out in turn. A star marks what it selects.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from _lab import OnDevice, eval_batches, load_network, split
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.data.tasks import order_classes
from caprompt.data.transforms import EvalTransform
from caprompt.methods.components.readout import compute_left_out_errors, list_candidates, select_num_blocks

ORDER, STRENGTH = 100, 0.1
MAX_IMAGES = 1_000  # of the first task, as in CAPrompt


@torch.no_grad()
def extract(images: OnDevice, classes: list[str], vit: ViT, transform: EvalTransform, mirror: bool) -> Tensor:
    """Return the class tokens of the last half of the blocks: (n, K, D)."""
    batches = eval_batches(images, images.targets(classes), transform)
    tokens = [vit(each.flip(-1) if mirror else each, num_blocks=list_candidates(vit.config.depth)[-1]) for each, _ in batches]
    blocks: Tensor = torch.cat(tokens).unflatten(1, (-1, vit.config.width))
    return blocks


def measure_accuracy(train: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor, projections: int) -> float:
    """Return the accuracy of the regression in percent: features (n, K, D) and labels."""
    rng = torch.Generator().manual_seed(ORDER)
    projection = torch.randn(train[0].numel(), projections, generator=rng).to(train)
    hidden = F.relu(train.flatten(1) @ projection).double()
    gram, targets = hidden.T @ hidden, F.one_hot(labels).double()
    gram.diagonal().add_(STRENGTH * gram.diagonal().sum() / len(hidden))
    weights = torch.linalg.solve(gram, hidden.T @ targets)
    predicted = [(F.relu(part.flatten(1) @ projection).double() @ weights).argmax(dim=1) for part in test.split(2048)]
    return 100 * float((torch.cat(predicted) == test_labels).double().mean())


def measure(dataset: str, tasks: int, backbone_file: str, per_class: int | None, validation: float, projections: int) -> str:
    """Return a row of the table."""
    backbone, vit = load_network(backbone_file)
    size = backbone.config.image_size
    transform = EvalTransform(size, backbone.mean, backbone.std, resize=round(size / 0.875))
    train, test = split(dataset, validation, per_class, ORDER if per_class else 0)
    classes = order_classes(sorted({train.labels[i] for i in train.indices}), "shuffled", ORDER)
    plain, mirrored = (extract(train, classes, vit, transform, mirror) for mirror in (False, True))
    held_out = extract(test, classes, vit, transform, mirror=False)
    labels, test_labels = (torch.tensor(images.targets(classes), device=plain.device) for images in (train, test))
    accuracy = partial(measure_accuracy, test_labels=test_labels, projections=projections)

    first = torch.nonzero(labels < len(classes) // tasks).squeeze(1).cpu().numpy()
    chosen = torch.tensor(np.random.default_rng(ORDER).permutation(first)[:MAX_IMAGES], device=plain.device)
    candidates = list_candidates(vit.config.depth)
    selected = select_num_blocks(plain[chosen], labels[chosen], STRENGTH, candidates)
    cells = []
    for count in candidates:
        last, tokens = slice(-count, None), plain[chosen][:, -count:].flatten(1).double()
        error = float(compute_left_out_errors(tokens @ tokens.T, labels[chosen], STRENGTH).mean())
        alone = accuracy(plain[:, last], labels, held_out[:, last])
        both = accuracy(torch.cat([plain, mirrored])[:, last], labels.repeat(2), held_out[:, last])
        cells.append(f"{count}: {alone:.1f}, mirrored {both:.1f} ({error:.3f}){'*' * (count == selected)}")
    name = f"{Path(dataset).name}, {Path(backbone_file).name.removesuffix('.safetensors')}, {per_class or 'all'} images of a class"
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print a row for every data set, backbone and number of images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["beetles=4"], metavar="NAME=TASKS")
    parser.add_argument("--backbones", nargs="+", default=["vit_mini_patch8_64.tin200_distilled"])
    parser.add_argument("--per-class", nargs="+", type=int, default=[0], help="training images of each class; 0: all")
    parser.add_argument("--validation", type=float, default=0.25)
    parser.add_argument("--projections", type=int, default=5_000)
    args = parser.parse_args()
    for data in args.data:
        dataset, _, tasks = data.partition("=")
        for backbone in args.backbones:
            for count in args.per_class:
                print(measure(dataset, int(tasks), backbone, count or None, args.validation, args.projections), flush=True)


if __name__ == "__main__":
    main()
