"""The paper preset, value by value, as the rulings in docs/decisions.md and the released program have it."""

from __future__ import annotations

import pytest

from caprompt.errors import InputError, UnknownNameError
from caprompt.presets import names, preset
from caprompt.running import run_config

SUPERVISED = "vit_base_patch16_224.orig_in21k"
COMMON = {
    "order": "natural",
    "batch_size": 24,
    "learning_rate": 0.03 * 24 / 256,
    "head_rate": 0.1,
    "clip": 1.0,
    "schedule": "constant",
    "length": 10,
    "layers": "all",
    "init": "uniform",
    "alpha": 5.0,
    "beta": 0.2,
    "cycles": 2,
    "first_pass": "equal",
    "aggregation": True,
    "replay": "covariance",
    "align_epochs": 30,
    "align_rate": 0.005,
    "align_draws": 5,
    "crop_scale": [0.05, 1.0],
    "flip": 0.5,
    "brightness": 0.0,
    "test_crop": 224 / 256,
    "normalise": "none",
}
STEP = {"epochs": 50, "schedule": "step", "step_at": 30 / 50, "alpha": 1.0}
CIFAR = {**STEP, "crop_scale": [0.08, 1.0], "brightness": 63 / 255, "normalise": "cifar100"}
CUB = {**STEP, "batch_size": 64, "learning_rate": 0.06 * 64 / 256}


@pytest.mark.parametrize(
    ("dataset", "special"),
    [("cifar100", CIFAR), ("cub200", CUB), ("imagenet-r", {"epochs": 100, "length": 20, "layers": list(range(9))}), ("digits", {})],
)
def test_the_papers_settings(dataset: str, special: dict[str, object]) -> None:
    assert preset("paper", "caprompt", dataset, SUPERVISED) == {**COMMON, **special}


@pytest.mark.parametrize("tag", ["dino", "ibot"])
def test_self_supervised_backbones_have_alpha_1(tag: str) -> None:
    assert preset("paper", "caprompt", "imagenet-r", f"vit_base_patch16_224.{tag}")["alpha"] == 1.0


def test_every_value_is_an_option_that_exists() -> None:
    for dataset in ("cifar100", "cub200", "imagenet-r"):
        assert run_config({**preset("paper", "caprompt", dataset, SUPERVISED), "dataset": dataset}).order == "natural"


def test_default_is_the_options_own_defaults() -> None:
    assert names() == ["default", "paper"]
    assert preset("default", "caprompt", "digits", SUPERVISED) == {}


def test_unknown_presets_and_methods() -> None:
    with pytest.raises(UnknownNameError, match="there are: default, paper"):
        preset("papr", "caprompt", "digits", SUPERVISED)
    with pytest.raises(InputError, match="says nothing of sequential-prompt"):
        preset("paper", "sequential-prompt", "digits", SUPERVISED)
