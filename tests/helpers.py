"""Test helpers: image folders, quick options, and functions that run a command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from caprompt.cli.app import main
from caprompt.methods import build_method, get_method
from caprompt.methods.base import Method
from caprompt.methods.caprompt import CAPrompt
from caprompt.testing.model_behavior import equal_tensors
from caprompt.testing.tiny import COLORS, TINY, square, squares, tiny_vit, write_backbone

__all__ = ["COLORS", "TINY", "equal_tensors", "square", "squares", "tiny_vit", "write_backbone"]

#: Part of scripts that run a grid: its progress, line by line.
PRINTING_PROGRESS = """
from caprompt.experiments.grid import NullGridProgress

class PrintingProgress(NullGridProgress):
    def on_start(self, cell):
        print("started", cell.name, flush=True)
    def on_end(self, cell, reason):
        print("ended", cell.name, reason, flush=True)
"""

ROOT = Path(__file__).parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"  # real data and weights, where a developer has them
Command = Callable[..., "subprocess.CompletedProcess[str]"]
QUICK = {"epochs": 2, "batch_size": 4, "length": 4, "align_epochs": 3, "projections": 100}  # for caprompt


def quick_options(method: str) -> dict[str, object]:
    """Return options that make a method learn quickly and stay small."""
    return dict(get_method(method).check_options)


def make_caprompt(tasks: int = 1, depth: int = TINY.depth, **options: object) -> Method:
    """Return CAPrompt with short prompts, in the last of its tasks; each task has two classes."""
    method = build_method("caprompt", tiny_vit(config=replace(TINY, depth=depth)), {"length": 4, **options})
    for _ in range(tasks):
        method.begin_task(2, torch.Generator().manual_seed(0))
    return method


def extract_both_passes(method: CAPrompt, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of the first and of the second pass: (B, K D) each."""
    stem = method.vit.stem(images)
    with torch.no_grad():
        first = method.extract_first_features(stem)
    return first, method.extract_second_features(stem, first)


def make_faint_images(classes: Sequence[int], each: int, seed: int) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """Return shuffled (images, labels) of coarse patterns in strong noise: a single image hardly shows its task."""
    rng = np.random.default_rng(seed)
    images: list[NDArray[np.uint8]] = []
    for number in classes:
        pattern = np.random.default_rng(1000 + number).normal(0, 20, (4, 4, 3)).repeat(4, axis=0).repeat(4, axis=1)
        images += [np.clip(128 + pattern + rng.normal(0, 40, pattern.shape), 0, 255).astype(np.uint8) for _ in range(each)]
    labels, order = [f"c{number}" for number in classes for _ in range(each)], rng.permutation(len(images))
    return [images[i] for i in order], [labels[i] for i in order]


#: Options with which a model of `make_faint_images` shows the batch leak of the released code.
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


def write_squares(folder: Path, colors: Sequence[str], each: int = 5, start: int = 0) -> Path:
    """Write colored squares as PNG files, a sub-folder per class."""
    return write_images(folder, *squares(colors, each, start), start)


def write_images(folder: Path, images: Sequence[NDArray[np.uint8]], labels: Sequence[str], start: int = 0) -> Path:
    """Write images as PNG files numbered from `start`, a sub-folder per class."""
    for image, label in zip(images, labels, strict=True):
        class_folder = folder / label
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(class_folder / f"{start + len(list(class_folder.iterdir())):03d}.png")
    return folder


def caprompt(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process."""
    words = [sys.executable, "-m", "caprompt", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


def caprompt_in_process(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which saves the seconds that importing torch takes."""
    words, before = [str(argument) for argument in arguments], Path.cwd()
    stdout, stderr = io.StringIO(), io.StringIO()
    status: object = None
    os.chdir(cwd)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main(words)
    except SystemExit as error:
        status = error.code
    finally:
        os.chdir(before)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_refused(folder: Path, words: Sequence[object], sentence: str, command: Command = caprompt) -> None:
    """Check that a command exits with 2, prints one line with this sentence to stderr, and changes no file."""
    before = read_tree(folder)
    done = command(*words, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("caprompt: ")
    assert sentence in lines[0]
    assert read_tree(folder) == before
