"""Strength of the ridge regression on frozen features, by number of training images: accuracy on validation images.

    python benchmarks/ridge_strength.py --data cifar100 cars/ --backbones deit_tiny_patch16_224.safetensors

lambda is `strength` times the mean squared length of the projected features. All classes are learned at once; nothing is trained.
A tenth of the training images is tested on. Prints a line for each data set, backbone and number of images of a class.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from _lab import OnDevice, eval_batches, load_network, split
from torch import Tensor

from caprompt.data.transforms import EvalTransform
from caprompt.methods.components.heads import cosines
from caprompt.methods.components.ridge import RandomRidge

STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
CHUNK = 5000  # images projected at once


@torch.no_grad()
def extract(images: OnDevice, backbone: str) -> tuple[Tensor, Tensor]:
    """Return features (n, D) and classes (n,) of images."""
    info, vit = load_network(backbone)
    size = info.config.image_size
    transform = EvalTransform(size, info.mean, info.std, resize=round(size / 0.875))
    targets = images.targets(sorted(set(images.labels)))
    return torch.cat([vit(batch) for batch, _ in eval_batches(images, targets, transform)]), torch.tensor(targets).to(images.device)


def select_few(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return the indices of `count` images of each class."""
    order = np.random.default_rng(seed).permutation(len(labels))
    shuffled = labels.cpu().numpy()[order]
    chosen = [order[np.flatnonzero(shuffled == label)[:count]] for label in np.unique(shuffled)]
    return torch.from_numpy(np.concatenate(chosen)).to(labels.device)


def measure_ridge(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], projections: int) -> list[float]:
    """Return the accuracy for each strength, in percent."""
    (features, labels), (test_features, test_labels) = train, test
    num_classes = int(labels.max()) + 1
    head = RandomRidge(features.shape[1], projections).to(features.device)
    head.grow(num_classes, torch.Generator().manual_seed(1))
    gram = features.new_zeros(projections, projections, dtype=torch.float64)
    sums = features.new_zeros(projections, num_classes, dtype=torch.float64)
    for rows, own in zip(features.split(CHUNK), labels.split(CHUNK), strict=True):
        hidden = head.project(rows).double()
        gram += hidden.T @ hidden
        sums += hidden.T @ torch.nn.functional.one_hot(own, num_classes).double()
    mean_square, hidden = float(gram.diagonal().sum()) / len(labels), head.project(test_features).double()
    accuracies = []
    for strength in STRENGTHS:
        system = gram.clone()
        system.diagonal().add_(strength * mean_square)
        weights = torch.cholesky_solve(sums, torch.linalg.cholesky(system))
        accuracies.append(100 * float(((hidden @ weights).argmax(dim=1) == test_labels).double().mean()))
    return accuracies


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100"])
    parser.add_argument("--backbones", nargs="+", default=["deit_tiny_patch16_224.fb_in1k"])
    parser.add_argument("--images", nargs="+", type=int, default=[1, 2, 5, 10, 20], help="of each class")
    parser.add_argument("--projections", type=int, default=5000)
    parser.add_argument("--validation", type=float, default=0.1)
    args = parser.parse_args()
    print("data, backbone, images a class | nearest class mean |", " | ".join(f"ridge {strength:g}" for strength in STRENGTHS))
    for dataset, backbone in ((dataset, backbone) for dataset in args.data for backbone in args.backbones):
        train_images, test_images = split(dataset, args.validation, None, 0)
        (features, labels), test = extract(train_images, backbone), extract(test_images, backbone)
        for count in args.images:
            few = select_few(labels, count, seed=5)
            own = features[few], labels[few]
            means = torch.stack([own[0][own[1] == label].mean(dim=0) for label in range(int(labels.max()) + 1)])
            nearest = 100 * float((cosines(test[0], means).argmax(dim=1) == test[1]).double().mean())
            figures = " | ".join(f"{accuracy:.1f}" for accuracy in [nearest, *measure_ridge(own, test, args.projections)])
            print(f"{Path(dataset).name}, {Path(backbone).stem}, {count} | {figures}", flush=True)


if __name__ == "__main__":
    main()
