"""Extreme options of every method: refused with a sentence, or learned with to a model whose scores are numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from helpers import quick_options, squares, write_backbone

from caprompt import ContinualClassifier, methods
from caprompt.backbones.weights import Backbone, load_backbone
from robust.attack import Attack, InvalidError
from robust.material import read_plan, write_plan

NUMBERS = (
    *(0, 1, 2, -1, 7, 100, 10**3, 10**4, 10**5, 10**6, 10**12, 10**30, 2**63),
    *(0.0, -0.0, 0.1, 0.5, 0.999, 1.0, 1.5, 30.0, 1e-6, 1e-300, 1e-45, 999.0, 1e6, 1e12, 1e38, 1e300, -1e300),
    *(float("nan"), float("inf"), -float("inf")),
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(None, True, False, "", "auto", "none", "x", "two\nlines", "\x1b[31m", "x" * 5000, "\ud800"),
    *([], [0], [1, 2, 3], [10**9], [-1], [0, 0], [1.0, 0.0], [0.0, 1.0], [1e-9, 1e-9], {}, {"a": 1}, [[]], list(range(1000))),
)
# They say how long training takes, so that a large value of one is a long training, and no attack.
LONG = frozenset({"epochs", "align_epochs", "align_draws", "cycles", "max_cycles", "prompt_epochs", "first_epochs", "warm_up"})
MAX_LONG = 5


def prepare(folder: Path) -> Backbone:
    """Return a tiny backbone."""
    torch.set_num_threads(1)
    return load_backbone(write_backbone(folder / "tiny.safetensors"))


def damage(backbone: Backbone, folder: Path, rng: Random, number: int) -> str:
    """Choose a method and one or two options with extreme values."""
    names = sorted(methods.list_methods())
    method = names[number % len(names)]
    fields = methods.get_method(method).options_class.model_fields
    chosen = {}
    for name in rng.sample(sorted(fields), rng.choice((1, 1, 2))):
        is_number = isinstance(fields[name].default, (int, float))
        value = rng.choice(NUMBERS if is_number and rng.random() < 0.8 else VALUES)
        is_long = (name in LONG or "epochs" in name) and isinstance(value, (int, float)) and value > MAX_LONG
        chosen[name] = MAX_LONG if is_long else value
    chosen.pop("compile", None)  # starts a compiler, which takes its time
    write_plan(folder, {"method": method, "options": chosen})
    return f"{method}: {str(chosen)[:200]!r}"


def use(backbone: Backbone, folder: Path) -> None:
    """Teach a model two tasks and ask it."""
    plan = read_plan(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ContinualClassifier(plan["method"], backbone, device="cpu", **{**quick_options(plan["method"]), **plan["options"]})
        model.learn(squares(["red", "green"], each=3), checkpoint_dir=folder / "model")
        model.learn(squares(["blue"], each=3), checkpoint_dir=folder / "model")
        scores = ContinualClassifier.load(folder / "model", device="cpu").predict_proba(squares(["red"], each=2)[0])
    if not np.isfinite(scores).all() or scores.shape != (2, 3):
        raise InvalidError(f"scores {scores}")


ATTACK = Attack("options", "extreme options of every method", 600, 40, prepare, damage, use)
