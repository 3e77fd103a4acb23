"""What tests share: a tiny ViT, coloured squares, and a plain way to type a command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.cli.app import main
from caprompt.methods import get_method

Command = Callable[..., "subprocess.CompletedProcess[str]"]
TINY = ViTConfig(image_size=16, patch_size=4, width=32, depth=2, heads=2, mlp_width=64)
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 60, 220),
    "yellow": (230, 220, 40),
    "purple": (150, 30, 180),
    "cyan": (30, 200, 210),
    "white": (240, 240, 240),
    "black": (15, 15, 15),
    "orange": (240, 140, 20),
    "grey": (128, 128, 128),
}
QUICK = {"epochs": 2, "batch_size": 4, "length": 4, "align_epochs": 3, "projections": 100}
SMALL = {"bottleneck": 4}


def quick_options(method: str) -> dict[str, int]:
    """Options that make a method learn quickly and stay small, as far as it has them."""
    return {name: value for name, value in {**QUICK, **SMALL}.items() if name in get_method(method).options_class.model_fields}


def tiny_vit(seed: int = 0, config: ViTConfig = TINY) -> ViT:
    """A random ViT, the same for the same seed, whose features do differ between pictures."""
    vit = ViT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return vit.requires_grad_(False).eval()


def write_backbone(path: Path, vit: ViT | None = None) -> Path:
    """A weights file of a tiny ViT, described as our own files are."""
    vit = vit or tiny_vit()
    described = {"heads": vit.config.heads, "norm_eps": vit.config.norm_eps, "mean": [0.5] * 3, "std": [0.5] * 3}
    save_file(vit.state_dict(), path, metadata={"caprompt": json.dumps(described)})
    return path


def square(colour: str, seed: int, size: int = 20) -> NDArray[np.uint8]:
    """A square of a colour on noise; the seed says where and how noisy."""
    rng = np.random.default_rng([seed, *COLOURS[colour]])
    image = rng.integers(90, 160, (size, size, 3)).astype(np.uint8)
    top, left = rng.integers(0, size // 3, 2)
    side = size // 2 + int(rng.integers(0, size // 4))
    image[top : top + side, left : left + side] = np.clip(np.array(COLOURS[colour]) + rng.integers(-15, 15, 3), 0, 255)
    return image


def squares(colours: Sequence[str], each: int = 5, start: int = 0) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """(images, labels): `each` squares of every colour; other `start`s are other pictures."""
    images = [square(colour, start + number) for colour in colours for number in range(each)]
    return images, [colour for colour in colours for _ in range(each)]


def faint(classes: Sequence[int], each: int, seed: int) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """(images, labels), shuffled, of coarse patterns that hardly show in noise: an image alone does not tell its task."""
    noise = np.random.default_rng(seed)
    images: list[NDArray[np.uint8]] = []
    for number in classes:
        pattern = np.random.default_rng(1000 + number).normal(0, 20, (4, 4, 3)).repeat(4, axis=0).repeat(4, axis=1)
        images += [np.clip(128 + pattern + noise.normal(0, 40, pattern.shape), 0, 255).astype(np.uint8) for _ in range(each)]
    labels, order = [f"c{number}" for number in classes for _ in range(each)], noise.permutation(len(images))
    return [images[i] for i in order], [labels[i] for i in order]


#: A model of `faint` pictures trained like this shows the released programs' leak.
LEAKY = {
    "protocol": "released",
    "classifier": "aligned",
    "init": "uniform",
    "cycles": 8,
    "epochs": 12,
    "batch_size": 16,
    "length": 8,
    "learning_rate": 0.3,
    "align_epochs": 20,
}


def write_squares(folder: Path, colours: Sequence[str], each: int = 5, start: int = 0) -> Path:
    """Squares as a folder per class of PNG files."""
    return write_pictures(folder, *squares(colours, each, start), start)


def write_pictures(folder: Path, images: Sequence[NDArray[np.uint8]], labels: Sequence[str], start: int = 0) -> Path:
    """A folder per class of PNG files, numbered from `start`."""
    for image, label in zip(images, labels, strict=True):
        place = folder / label
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{start + len(list(place.iterdir())):03d}.png")
    return folder


def caprompt(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Type a command, in a process of its own."""
    words = [sys.executable, "-m", "caprompt", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


def caprompt_here(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same within this process, which saves the seconds that importing torch takes."""
    words, before = [str(argument) for argument in arguments], Path.cwd()
    stdout, stderr = io.StringIO(), io.StringIO()
    status: object = None
    os.chdir(cwd)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main(words)
    except SystemExit as ended:
        status = ended.code
    finally:
        os.chdir(before)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def same_tensors(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal names, and every tensor equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_refused(place: Path, words: Sequence[object], sentence: str, command: Command = caprompt) -> None:
    """Exit 2, one sentence on stderr that says this, no traceback, and not a byte changed on disk."""
    before = tree(place)
    done = command(*words, cwd=place)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("caprompt: ")
    assert sentence in lines[0]
    assert tree(place) == before
