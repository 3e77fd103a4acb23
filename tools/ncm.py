"""Measure the features of a backbone by the accuracy of the nearest class mean, without training.

    python tools/ncm.py --images cifar100 --backbone vit_mini_patch8_64.tin200_distilled --random

`--images` contains train/<class>/<image> and test/<class>/<image>. The short side of every image is
resized to the backbone's own size (bicubic) and the center is cropped; the features of the training
images of a class are averaged, and a test image is assigned to the class whose mean has the largest
cosine similarity. `--random` adds the architecture of the first backbone with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from caprompt.backbones import ViT, ViTConfig, load_backbone
from caprompt.backbones.constants import NORMALIZATIONS
from caprompt.data.image_cache import ImageCache
from caprompt.data.loader import iter_batches
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.transforms import Color, EvalTransform
from caprompt.errors import CapromptError


def iter_images(samples: Samples, size: int, mean: Color, std: Color, batch_size: int) -> Iterator[Tensor]:
    """Yield normalized center crops (B, 3, size, size), in order."""
    transform, cache = EvalTransform(size, mean, std, resize=size), ImageCache(budget_bytes=0)
    batches = iter_batches(
        samples, [0] * len(samples), transform, cache, batch_size, seed=None, shuffle=False, workers=os.cpu_count() or 1
    )
    return (images for images, _ in batches)


def load_images(samples: Samples, size: int) -> Tensor:
    """Decode all images, as center crops: (N, 3, size, size) uint8."""
    batches = iter_images(samples, size, *NORMALIZATIONS["none"], batch_size=512)
    return torch.cat([(images * 255).round().byte() for images in batches])


def encode_labels(samples: Samples, classes: Sequence[str]) -> Tensor:
    """Return the index of each sample's class: (N,)."""
    return torch.tensor([classes.index(label) for label in samples.labels])


def normalize(images: Tensor, mean: Color, std: Color) -> Tensor:
    """Normalize images (B, 3, H, W) with values in 0..1."""
    shape = (1, 3, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


def nearest_mean_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Return the percentage of test features (n, D) nearest, by cosine, to their class's mean."""
    num_classes = int(train_labels.max()) + 1
    sums = train.new_zeros(num_classes, train.shape[1]).index_add_(0, train_labels, train)
    means = F.normalize(sums, dim=1)  # a mean and a sum have the same direction
    nearest = (F.normalize(test, dim=1) @ means.T).argmax(dim=1)
    return 100 * (nearest == test_labels).float().mean().item()


def random_vit(config: ViTConfig, seed: int) -> ViT:
    """Initialize a ViT: truncated normal weights of std 0.02, zero biases, identity norms."""
    generator = torch.Generator().manual_seed(seed)
    vit = ViT(config)
    nn.init.trunc_normal_(vit.pos_embed, std=0.02, generator=generator)
    nn.init.trunc_normal_(vit.cls_token, std=0.02, generator=generator)
    for module in vit.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=0.02, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return vit


@torch.inference_mode()
def compute_features(vit: ViT, batches: Iterable[Tensor]) -> Tensor:
    """Return the class-token features (N, D) of batches of normalized images, in float32."""
    device = vit.pos_embed.device
    # The class token is a view of all tokens: without the clone they would all stay in memory.
    return torch.cat([vit(images.to(device)).clone() for images in batches])


def measure(images: Path, backbone_name: str, device: str, batch_size: int, random: bool = False) -> dict[str, Any]:
    """Return one row of the table, of a backbone or of its architecture with random weights."""
    backbone = load_backbone(backbone_name)
    vit = (random_vit(backbone.config, seed=0).eval() if random else backbone.build()).to(device)
    train = read_source(images / "train")
    test = read_source(images / "test").select_classes(train.classes)
    start = time.perf_counter()
    size = backbone.config.image_size
    train_features, test_features = (
        compute_features(vit, iter_images(samples, size, backbone.mean, backbone.std, batch_size)) for samples in (train, test)
    )
    train_labels, test_labels = (encode_labels(samples, train.classes).to(device) for samples in (train, test))
    accuracy = nearest_mean_accuracy(train_features, train_labels, test_features, test_labels)
    return {
        "backbone": f"random weights ({backbone.name})" if random else backbone.name,
        "sha256": None if random else backbone.sha256,
        "parameters": backbone.num_parameters,
        "pixels": size,
        "images": images.name,
        "train_images": len(train),
        "test_images": len(test),
        "classes": len(train.classes),
        "ncm_accuracy": round(accuracy, 2),
        "seconds": round(time.perf_counter() - start, 1),
    }


def describe_hardware(device: str) -> str:
    """Name the device that the results were measured on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every backbone on every pair of folders, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, nargs="+", required=True, help="folders with train/ and test/")
    parser.add_argument("--backbone", nargs="+", required=True, help="names, or weights files")
    parser.add_argument("--random", action="store_true", help="add the first backbone with random weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args(arguments)

    rows = []
    print(f"{'images':24s} {'backbone':56s} {'px':>4s} {'NCM %':>6s} {'s':>6s}")
    for images in args.images:
        for backbone, random in [(name, False) for name in args.backbone] + [(args.backbone[0], True)] * args.random:
            try:
                row = measure(images, backbone, args.device, args.batch_size, random)
            except CapromptError as error:
                parser.error(str(error))
            rows.append(row)
            print(
                f"{row['images']:24s} {row['backbone']:56s} {row['pixels']:4d} {row['ncm_accuracy']:6.2f} {row['seconds']:6.1f}",
                flush=True,
            )
    if args.json:
        environment = {"date": date.today().isoformat(), "hardware": describe_hardware(args.device)}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**environment, "versions": versions, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
