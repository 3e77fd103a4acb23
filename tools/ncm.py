"""How good are a backbone's features? Nearest class mean: no training, no options to tune, one number.

    python tools/ncm.py --images cifar100 --backbone vit_mini_patch8_64.tin200_distilled --random --json result.json

`--images` holds train/<class>/*.png and test/<class>/*.png (or .jpg). Every image is resized to the backbone's own size
(bicubic), the features of a class's training images are averaged, and a test image goes to the class whose mean has the
largest cosine with its feature. `--random` adds the first backbone's architecture with untrained weights.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.backbones.weights import load_backbone
from caprompt.errors import CapromptError, DataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


@dataclass(frozen=True)
class Folder:
    """The images of one split, by path, with their classes as numbers."""

    paths: list[Path]
    labels: Tensor  # (N,)
    classes: list[str]

    def load(self, size: int, part: slice = slice(None)) -> Tensor:
        """Decode some of the images, cropped to a square and resized: (n, 3, size, size) uint8."""
        with ThreadPoolExecutor() as pool:
            arrays = list(pool.map(lambda path: decode(path, size), self.paths[part]))
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def list_folder(folder: Path, classes: Sequence[str] | None = None) -> Folder:
    """Find folder/<class>/<image>; classes are sorted by name unless given."""
    if not folder.is_dir():
        raise DataError(f"there is no folder '{folder}'")
    names = list(classes or sorted(path.name for path in folder.iterdir() if path.is_dir()))
    found = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise DataError(f"'{folder}' holds no images; expected {folder}/<class>/<image>.png")
    return Folder([path for path, _ in found], torch.tensor([label for _, label in found]), names)


def decode(path: Path, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One RGB image of size x size pixels; what does not fit a square is cut off evenly."""
    with Image.open(path) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC))


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bring images (B, 3, H, W) with values 0..1 to the mean and spread a network was trained on."""
    shape = (1, 3, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


def nearest_mean(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Percentage of test features (n, D) nearest, by cosine, to the mean training feature of their own class."""
    count = int(train_labels.max()) + 1
    sums = train.new_zeros(count, train.shape[1]).index_add_(0, train_labels, train)
    means = F.normalize(sums, dim=1)  # a mean and a sum point the same way
    nearest = (F.normalize(test, dim=1) @ means.T).argmax(dim=1)
    return 100 * (nearest == test_labels).float().mean().item()


def random_vit(config: ViTConfig, seed: int) -> ViT:
    """A ViT before any training: truncated normal weights of 0.02, zero biases, norms that change nothing."""
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


def batches(folder: Folder, size: int, batch_size: int) -> Iterator[Tensor]:
    """The folder's images in order, decoded a batch at a time."""
    for start in range(0, len(folder.paths), batch_size):
        yield folder.load(size, slice(start, start + batch_size))


@torch.inference_mode()
def features(vit: ViT, images: Iterator[Tensor], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The class-token features (N, D) of uint8 image batches, in fp32."""
    device = vit.pos_embed.device
    # The class token is a view of all tokens: without the clone every one of them would stay in memory.
    return torch.cat([vit(normalize(batch.to(device).float() / 255, mean, std)).clone() for batch in images])


def measure(images: Path, backbone: str, device: str, batch_size: int, random: bool = False) -> dict[str, Any]:
    """One row of the table: a backbone, or its architecture with random weights, on a pair of folders."""
    found = load_backbone(backbone)
    vit = (random_vit(found.config, seed=0).eval() if random else found.build()).to(device)
    train = list_folder(images / "train")
    test = list_folder(images / "test", train.classes)
    start = time.perf_counter()
    size = found.config.image_size
    means, tests = (features(vit, batches(split, size, batch_size), found.mean, found.std) for split in (train, test))
    accuracy = nearest_mean(means, train.labels.to(device), tests, test.labels.to(device))
    return {
        "backbone": f"random weights ({found.name})" if random else found.name,
        "sha256": None if random else found.sha256,
        "parameters": found.parameters,
        "pixels": size,
        "images": images.name,
        "train_images": len(train.paths),
        "test_images": len(test.paths),
        "classes": len(train.classes),
        "ncm_accuracy": round(accuracy, 2),
        "seconds": round(time.perf_counter() - start, 1),
    }


def hardware(device: str) -> str:
    """What the figures were measured on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every backbone on every pair of folders, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, nargs="+", required=True, help="folders with train/ and test/")
    parser.add_argument("--backbone", nargs="+", required=True, help="names, or .safetensors files")
    parser.add_argument("--random", action="store_true", help="add the first backbone with random weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
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
        about = {"date": date.today().isoformat(), "hardware": hardware(args.device)}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**about, "versions": versions, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
