"""What several attacks make: the plan of a try, and a small model with images for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from helpers import QUICK, write_backbone, write_squares

from caprompt import ContinualClassifier

PLAN = "plan.json"


def write_plan(folder: Path, plan: Mapping[str, object]) -> str:
    """Write what was chosen for a try into its folder, and return it as text."""
    text = json.dumps(plan)
    (folder / PLAN).write_text(text)
    return text


def read_plan(folder: Path) -> dict[str, Any]:
    """Return what was chosen for a try."""
    plan: dict[str, Any] = json.loads((folder / PLAN).read_text())
    return plan


def make_model(
    folder: Path, lessons: Mapping[str, Sequence[str]], options: Mapping[str, object] = QUICK, each: int = 5
) -> ContinualClassifier:
    """Write a backbone, a folder of images for each lesson, with some of each color, and `pets`, a model of the first lesson."""
    torch.set_num_threads(1)
    for name, colors in lessons.items():
        write_squares(folder / name, colors, each=each)
    model = ContinualClassifier(backbone=write_backbone(folder / "tiny.safetensors"), device="cpu", **options)
    model.learn(folder / next(iter(lessons)), checkpoint_dir=folder / "pets")
    return model
