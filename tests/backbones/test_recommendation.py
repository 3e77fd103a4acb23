from __future__ import annotations

import json
import random

import pytest
from backbones.published import DEIT
from export.local_hub import LocalHub
from helpers import ROOT

from caprompt.backbones.recommendation import (
    MAX_GFLOP,
    MEASURED,
    PERMISSIVE,
    Recommendation,
    compare,
    count_gflop,
    describe_download,
    find_present,
    recommend,
)
from caprompt.backbones.registry import MODELS, find_file
from caprompt.backbones.weights import DEFAULT_BACKBONE

CLIP = "vit_base_patch16_clip_224.openai"
SMALL = "deit_small_patch16_224.fb_in1k"
MAE = "vit_base_patch16_224.mae"
DINO = "vit_base_patch16_224.dino"
DINOV2 = "vit_small_patch14_dinov2.lvd142m"
RESULT_NAMES = {"vit_mini_patch8_64": DEFAULT_BACKBONE, "deit_tiny_patch16_224": DEIT, "clip_vit_base_patch16_224": CLIP}


def test_accuracies_are_those_of_the_results() -> None:
    lines = (ROOT / "results" / "search" / "ridge_strength.txt").read_text().splitlines()
    column = lines[0].split(" | ").index("ridge 0.1")
    rows = {tuple(line.split(" | ")[0].split(", ")): line.split(" | ") for line in lines[1:]}
    results = {RESULT_NAMES[key[1]]: float(row[column]) for key, row in rows.items() if key[::2] == ("stanford_cars98_192px", "21")}
    assert results == {name: measurement.cars for name, measurement in MEASURED.items()}


def test_speeds_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "results" / "accuracy" / "embedded_backbone.json").read_text())
    assert results["environment"]["device"].startswith("cpu")
    assert results["environment"]["threads"] == 2
    rows = {row["backbone"].partition(".")[0]: row for row in results["results"] if row["images"] == "cifar100" and row["sha256"]}
    speeds = {RESULT_NAMES[name]: (row["train_images"] + row["test_images"]) / row["seconds"] for name, row in rows.items()}
    assert {name: round(speed) for name, speed in speeds.items()} == {
        name: measurement.cpu_speed for name, measurement in MEASURED.items() if measurement.cpu_speed
    }


@pytest.mark.parametrize(
    ("present", "gpu", "name", "better"),
    [
        ([], False, DEFAULT_BACKBONE, DEIT),
        ([], True, DEFAULT_BACKBONE, CLIP),
        ([DEIT], False, DEIT, None),
        ([DEIT], True, DEIT, CLIP),
        ([CLIP], True, CLIP, None),
        ([CLIP], False, DEFAULT_BACKBONE, DEIT),  # too slow to be chosen unasked
        ([DEIT, SMALL], False, SMALL, None),  # nothing says that DeiT-Ti is better
        ([SMALL], True, SMALL, CLIP),
        ([DINO], True, DINO, None),  # as wide as CLIP, and not measured
        ([DINO, CLIP], True, CLIP, None),
        ([MAE], True, DEFAULT_BACKBONE, CLIP),  # not for commercial use
        ([DINOV2], True, DEFAULT_BACKBONE, CLIP),  # 518 pixels
    ],
)
def test_rule(present: list[str], gpu: bool, name: str, better: str | None) -> None:
    assert recommend(present, gpu=gpu) == Recommendation(name, MODELS[better] if better else None)


def test_no_non_commercial_or_unmeasured_backbone_is_ever_proposed() -> None:
    rng = random.Random(0)
    for _ in range(200):
        present = rng.sample(sorted(MODELS), rng.randrange(len(MODELS)))
        for gpu in (True, False):
            choice = recommend(present, gpu=gpu)
            for name in {choice.name, choice.better.name if choice.better else choice.name} - {DEFAULT_BACKBONE}:
                assert MODELS[name].license in PERMISSIVE
                assert count_gflop(MODELS[name].config) <= MAX_GFLOP[gpu]
            assert choice.name in {*present, DEFAULT_BACKBONE}
            assert choice.better is None or (choice.better.name in MEASURED and choice.better.name not in present)


def test_proposal_states_size_license_data_and_figures() -> None:
    assert describe_download(MODELS[CLIP]) == f"{CLIP} (599 MB, MIT)"
    text = compare(CLIP, DEIT, gpu=True)
    assert text.startswith("90.1 % instead of 45.3 % right (Stanford Cars, 98 classes, JPEG copies, ")
    assert "images/s" not in text
    assert compare(DEIT, DEFAULT_BACKBONE, gpu=False).endswith("at 21 instead of 259 images/s on two CPU cores")
    assert "images/s" not in compare(CLIP, DEIT, gpu=False)  # CLIP was not measured on a CPU


def test_present_backbones_are_those_in_the_cache(backbone_hub: LocalHub) -> None:
    assert find_present() == []
    find_file(MODELS[DEIT])
    assert find_present() == [DEIT]
