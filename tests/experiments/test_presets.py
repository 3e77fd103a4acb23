"""The presets, value by value: `paper` as in each method's own code (see docs/decisions.md), `budget` shared by all methods."""

from __future__ import annotations

import pytest
import torch

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.data.datasets.registry import DATASETS
from caprompt.errors import InputError, UnknownNameError
from caprompt.experiments.config import build_run_config, load_preset_settings
from caprompt.experiments.presets import HERE, list_presets, load_preset
from caprompt.methods import build_method, list_methods
from caprompt.utils.files import read_toml

SUPERVISED = "vit_base_patch16_224.orig_in21k"
CAPROMPT = {
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
    "classifier": "aligned",
    "first_pass": "prompted",
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
def test_paper_preset_of_caprompt(dataset: str, special: dict[str, object]) -> None:
    assert load_preset("paper", "caprompt", dataset, SUPERVISED) == {**CAPROMPT, **special}


@pytest.mark.parametrize(
    ("dataset", "tag", "alpha", "beta"),
    [
        ("cifar100", "orig_in21k", 1.0, 0.2),
        ("cifar100", "dino", 0.1, 0.2),
        ("cifar100", "ibot", 0.1, 0.0),
        ("imagenet-r", "orig_in21k", 5.0, 0.2),
        ("imagenet-r", "dino", 1.0, 0.2),
        ("imagenet-r", "ibot", 1.0, 0.2),
        ("cub200", "orig_in21k", 1.0, 0.2),
        ("cub200", "dino", 0.1, 0.2),
        ("cub200", "ibot", 0.1, 0.2),
        ("digits", "dino", 5.0, 0.2),
    ],
)
def test_paper_preset_has_alpha_and_beta_by_dataset_and_backbone(dataset: str, tag: str, alpha: float, beta: float) -> None:
    settings = load_preset("paper", "caprompt", dataset, f"vit_base_patch16_224.{tag}")
    assert (settings["alpha"], settings["beta"]) == (alpha, beta)


@pytest.mark.parametrize("tag", ["dino", "ibot"])
def test_table_of_a_backbone_on_a_dataset_keeps_the_other_settings_of_the_dataset(tag: str) -> None:
    supervised = load_preset("paper", "caprompt", "cub200", SUPERVISED)
    settings = load_preset("paper", "caprompt", "cub200", f"vit_base_patch16_224.{tag}")
    assert {**settings, "alpha": 1.0} == supervised


# Shared by the code of the other methods: a loop with Adam or SGD, and the random crops of L2P or the usual ones.
ADAM = {"optimizer": "adam", "weight_decay": 0.0, "head_rate": 1.0}
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-4, "head_rate": 1.0, "clip": 0.0, "schedule": "cosine"}
TRANSFORMS = {"brightness": 0.0, "test_crop": 224 / 256, "normalise": "none"}
L2P_CROPS = {**TRANSFORMS, "crop_scale": [0.05, 1.0]}
USUAL_CROPS = {**TRANSFORMS, "crop_scale": [0.08, 1.0]}
L2P_LOOP = {**ADAM, "order": "natural", "batch_size": 24, "learning_rate": 0.03 * 24 / 256, "clip": 1.0, "schedule": "constant"}
CODA_LOOP = {**ADAM, "order": "natural", "batch_size": 128, "clip": 0.0, "schedule": "quarter-cosine"}

# Not shared: prompts, adapters and other options of a single method.
ADAPTERS = {"bottleneck": 64, "adapter_scale": 0.1}
HIDE_ALIGNMENT = {"replay": "multi-centroid", "centroids": 10, "align_epochs": 30, "align_rate": 0.005, "align_draws": 5}
SSIAT_ALIGNMENT = {"replay": "covariance", "align_epochs": 5, "align_rate": 0.01, "align_draws": 5}
TASK_ADAPTERS = {"bottleneck": 16, "adapter_scale": 0.1, "replay": "covariance"}
TASK_ADAPTERS |= {"align_epochs": 30, "align_rate": 0.005, "align_draws": 5}
METHOD_OPTIONS: dict[str, dict[str, object]] = {
    "l2p": {"pool": 10, "length": 5, "top": 5, "pull": 0.1},
    "dualprompt": {"layers": "first-5", "general_layers": 2, "general_length": 10, "length": 10, "init": "uniform", "pull": 1.0},
    "coda-prompt": {"components": 10, "length": 8, "prompted": 5, "orthogonality": 0.0},
    "hide-prompt": {"length": 10, "layers": "first-5", "init": "uniform", "mixture": 0.01, "contrast": 0.1, **HIDE_ALIGNMENT},
    "evoprompt": {"length": 5, "hidden": 16, "alpha": 0.5, "transport": "exact"},
    "convprompt": {"length": 40, "layers": "first-7", "init": "uniform", "filters": 5, "kernel": 17, "retain": 0.01},
    "cprompt": {"length": 50, "second_layer": 5, "temperature": 1.15, "margin": 0.1, "smooth": 1.0},
    "inflora": {"rank": 10, "threshold": 0.98, "planned_tasks": 10},
    "ease": {**ADAPTERS, "alpha": 0.1},
    "ssiat": {**ADAPTERS, **SSIAT_ALIGNMENT, "later_share": 0.5, "scale": 20.0, "margin": 0.0},
    "ranpac": {**ADAPTERS, "projections": 10_000, "adapt_first": True},
    "moal": {**ADAPTERS, "proxy_scale": 1.0, "projections": 10_000, "average": 0.999, "ruminate": True},
    "mos": {**TASK_ADAPTERS, "merge": 0.1, "contrast": 0.1, "switches": 4, "ensemble": True},
    "tuna": {**TASK_ADAPTERS, "scale": 20.0, "margin": 0.0, "overlap": 0.001, "shrink": True},
    "finetune": {"masked": False},
    "linear": {"masked": True},
}
LOOPS: dict[str, dict[str, object]] = {
    "l2p": {**L2P_LOOP, **L2P_CROPS, "epochs": 5},
    "dualprompt": {**L2P_LOOP, **L2P_CROPS, "epochs": 5},
    "coda-prompt": {**CODA_LOOP, **USUAL_CROPS, "learning_rate": 1e-3, "epochs": 50},
    "hide-prompt": {**L2P_LOOP, **L2P_CROPS, "head_rate": 0.1, "schedule": "step", "step_at": 30 / 50, "epochs": 50},
    "evoprompt": {**L2P_LOOP, **USUAL_CROPS, "batch_size": 64, "learning_rate": 5e-3, "epochs": 50, "brightness": 0.4},
    "convprompt": {
        **L2P_LOOP,
        **L2P_CROPS,
        "batch_size": 128,
        "learning_rate": 0.005 * 128 / 256,
        "schedule": "cosine",
        "epochs": 10,
    },
    "cprompt": {**SGD, **USUAL_CROPS, "order": "shuffled", "batch_size": 16, "learning_rate": 0.01, "epochs": 10},
    "inflora": {**CODA_LOOP, **USUAL_CROPS, "learning_rate": 5e-4, "epochs": 50},
    "ease": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 48, "learning_rate": 0.025, "epochs": 20},
    "ssiat": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 48, "learning_rate": 0.01, "epochs": 20},
    "ranpac": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 48, "learning_rate": 0.01, "epochs": 20},
    "moal": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 48, "learning_rate": 0.01, "epochs": 80},
    "mos": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 48, "learning_rate": 0.03, "head_rate": 0.1, "epochs": 20},
    "tuna": {**SGD, **L2P_CROPS, "order": "shuffled", "batch_size": 16, "learning_rate": 0.01, "epochs": 15},
    "ncm": {"order": "shuffled", "test_crop": 224 / 256, "normalise": "none"},
    "finetune": {**CODA_LOOP, **USUAL_CROPS, "learning_rate": 5e-5, "epochs": 20},
    "linear": {**L2P_LOOP, **L2P_CROPS, "batch_size": 16, "learning_rate": 0.03 * 16 / 256, "epochs": 5},
}
PAPER_SETTINGS = {method: {**loop, **METHOD_OPTIONS.get(method, {})} for method, loop in LOOPS.items()}
SPECIAL: dict[tuple[str, str], dict[str, object]] = {
    ("l2p", "cifar100"): {"batch_size": 16, "learning_rate": 0.03 * 16 / 256},
    ("l2p", "imagenet-r"): {"learning_rate": 0.005 * 24 / 256, "epochs": 50, "top": 4, "read": "class-token"},
    ("l2p", "cub200"): {"top": 4, "read": "class-token"},
    ("dualprompt", "imagenet-r"): {"learning_rate": 0.005 * 24 / 256, "epochs": 50, "length": 40},
    ("dualprompt", "cub200"): {"epochs": 40, "schedule": "step", "step_at": 30 / 40, "length": 40},
    ("coda-prompt", "cifar100"): {"epochs": 20, "test_crop": 1.0},
    ("hide-prompt", "cifar100"): {"crop_scale": [0.08, 1.0], "brightness": 63 / 255, "normalise": "cifar100"},
    ("hide-prompt", "imagenet-r"): {"epochs": 150, "schedule": "cosine", "length": 40, "contrast": 0.5},
    ("hide-prompt", "cub200"): {"head_rate": 1.0, "length": 40, "contrast": 0.01},
    ("evoprompt", "cifar100"): {"epochs": 20, "test_crop": 1.0},
    ("convprompt", "imagenet-r"): {"clip": 0.0},
    ("convprompt", "cub200"): {"batch_size": 24, "learning_rate": 0.001 * 24 / 256, "epochs": 60},
    ("cprompt", "cifar100"): {
        "epochs": 18,
        "brightness": 63 / 255,
        "normalise": "imagenet",
        "temperature": 1.2,
        "margin": 0.0,
    },
    ("inflora", "cifar100"): {"epochs": 20, "threshold": 0.95, "test_crop": 1.0},
    ("ease", "imagenet-r"): {"batch_size": 16, "learning_rate": 0.05, "weight_decay": 5e-3},
    ("ease", "cub200"): {"batch_size": 32, "learning_rate": 0.008, "alpha": 0.05},
    ("ranpac", "cifar100"): {"test_crop": 1.0},
    ("moal", "cifar100"): {"projections": 5_000},
    ("moal", "imagenet-r"): {"projections": 20_000},
    ("moal", "cub200"): {"projections": 15_000},
    ("mos", "imagenet-r"): {"batch_size": 16, "learning_rate": 0.05, "weight_decay": 5e-3, "epochs": 10},
    ("mos", "cub200"): {"batch_size": 32, "learning_rate": 0.01, "epochs": 10},
    ("tuna", "cifar100"): {"overlap": 0.0, "shrink": False},
    ("tuna", "imagenet-r"): {"batch_size": 32, "learning_rate": 0.02, "epochs": 10},
    ("finetune", "cifar100"): {"test_crop": 1.0},
}


@pytest.mark.parametrize("dataset", ["cifar100", "imagenet-r", "cub200", "digits"])
@pytest.mark.parametrize("method", PAPER_SETTINGS)
def test_paper_preset_of_other_methods(method: str, dataset: str) -> None:
    assert load_preset("paper", method, dataset, SUPERVISED) == {**PAPER_SETTINGS[method], **SPECIAL.get((method, dataset), {})}


BUDGET = {
    "order": "shuffled",
    "epochs": 5,
    "batch_size": 64,
    "optimizer": "adam",
    "learning_rate": 3e-3,
    "weight_decay": 0.0,
    "clip": 1.0,
    "schedule": "cosine",
    "crop_scale": [0.3, 1.0],
    "flip": 0.5,
    "brightness": 0.0,
    "test_crop": 0.875,
    "normalise": "backbone",
}
BUDGET_SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-4, "clip": 0.0}
BUDGET_OF_METHOD: dict[str, dict[str, object]] = {
    "caprompt": {"learning_rate": "auto", "projections": 10_000},
    "coda-prompt": {"learning_rate": 1e-3, "schedule": "quarter-cosine", "clip": 0.0},
    "convprompt": {"learning_rate": 0.005 * 64 / 256},
    "cprompt": {**BUDGET_SGD, "learning_rate": 0.01},
    "inflora": {"learning_rate": 5e-4, "head_rate": 6.0, "schedule": "quarter-cosine", "clip": 0.0},
    "ease": {**BUDGET_SGD, "learning_rate": 0.025},
    "ssiat": {**BUDGET_SGD, "learning_rate": 0.01, "later_share": 1.0, "align_draws": 4},
    "ranpac": {**BUDGET_SGD, "learning_rate": 0.01},
    "moal": {**BUDGET_SGD, "clip": 0.0, "learning_rate": 0.01},
    "mos": {**BUDGET_SGD, "clip": 0.0, "learning_rate": 0.03, "head_rate": 0.1},
    "tuna": {**BUDGET_SGD, "clip": 0.0, "learning_rate": 0.01},
    "finetune": {"learning_rate": 5e-5, "head_rate": 60.0, "clip": 0.0},
}


@pytest.mark.parametrize("dataset", ["cifar100", "digits"])
@pytest.mark.parametrize("method", [*PAPER_SETTINGS, "caprompt", "sequential-prompt", "a-method-to-come"])
def test_budget_preset_is_shared_apart_from_rates_and_options_of_a_method(method: str, dataset: str) -> None:
    assert load_preset("budget", method, dataset, SUPERVISED) == {**BUDGET, **BUDGET_OF_METHOD.get(method, {})}


@pytest.mark.parametrize("dataset", ["cifar100", "imagenet-r", "cub200"])
@pytest.mark.parametrize("method", [method for method in PAPER_SETTINGS if method != "ncm"])
def test_budget_preset_clips_gradients_where_the_code_of_a_method_does(method: str, dataset: str) -> None:
    budget, paper = (load_preset(name, method, dataset, SUPERVISED)["clip"] for name in ("budget", "paper"))
    assert budget == paper


def test_budget_preset_has_the_learning_rate_of_the_paper_for_its_classifier() -> None:
    assert load_preset("budget", "caprompt", "cifar100", SUPERVISED, {"classifier": "aligned"}) == {**BUDGET, "projections": 10_000}
    overrides = {"classifier": "aligned", "dataset": "cifar100"}
    assert load_preset_settings("budget", overrides)["learning_rate"] == 3e-3


@pytest.mark.parametrize("name", ["budget", "paper"])
def test_presets_have_no_other_tables_than_those_tested_here(name: str) -> None:
    tables = read_toml(HERE / f"{name}.toml")
    assert tables.keys() - {"*"} <= {*PAPER_SETTINGS, "caprompt"}
    assert {key for table in tables.values() for key in table.get("dataset", {})} <= DATASETS.keys()


@pytest.mark.parametrize("name", list_presets())
@pytest.mark.parametrize("method", list_methods())
def test_every_method_can_be_built_with_every_preset_and_dataset(name: str, method: str) -> None:
    """With a ViT-B/16 as in the papers, on the device `meta`, where nothing is computed."""
    if name == "paper" and method not in {*PAPER_SETTINGS, "caprompt"}:
        pytest.skip("not in the preset paper")
    with torch.device("meta"):
        vit = ViT(ViTConfig(image_size=224, patch_size=16, width=768, depth=12, heads=12, mlp_width=3072))
    for dataset in DATASETS:
        settings = load_preset(name, method, dataset, SUPERVISED)
        config = build_run_config({**settings, "method": method, "dataset": dataset})
        assert config.options.items() <= settings.items()
        # CAPrompt's own classifier sets further options.
        assert config.options.keys() <= build_method(method, vit, config.options).options.model_dump(exclude_unset=True).keys()


def test_default_preset_is_empty() -> None:
    assert list_presets() == ["budget", "default", "paper"]
    assert load_preset("default", "caprompt", "digits", SUPERVISED) == {}


def test_unknown_preset_and_method() -> None:
    with pytest.raises(UnknownNameError, match="there are: budget, default, paper"):
        load_preset("papr", "caprompt", "digits", SUPERVISED)
    with pytest.raises(InputError, match="has no settings for sequential-prompt"):
        load_preset("paper", "sequential-prompt", "digits", SUPERVISED)
