"""The figures, sizes and licenses on docs/backbones.md are those of the code and of the results, and its links exist."""

from __future__ import annotations

import json
import re

from helpers import ROOT
from links import find_broken_links

from caprompt.backbones.recommendation import MAX_GFLOP, MEASURED
from caprompt.backbones.registry import MODELS
from caprompt.backbones.weights import DEFAULT_BACKBONE, PACKAGED_LICENSE, list_packaged
from caprompt.metrics import mean_std

PAGE = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")


def read_rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_sizes_and_licenses() -> None:
    rows = {name.strip("`"): (size, license) for name, size, license in read_rows("Names, sizes and licenses")}
    embedded = list_packaged()[DEFAULT_BACKBONE].stat().st_size / 1e6
    expected = {name: (f"{model.megabytes} MB" if model.repo else "by hand", model.license) for name, model in MODELS.items()}
    assert rows == {DEFAULT_BACKBONE: (f"{embedded:.0f} MB", PACKAGED_LICENSE), **expected}


def test_figures() -> None:
    rows = {
        re.sub(r".*`(.*)`.*", r"\1", row[0]).replace("embedded", DEFAULT_BACKBONE): row
        for row in read_rows("What a better one brings")
    }
    assert {name: (float(row[1]), row[4]) for name, row in rows.items()} == {
        name: (each.cars, f"{each.cpu_speed} images/s" if each.cpu_speed else "not measured") for name, each in MEASURED.items()
    }
    results = json.loads((ROOT / "results" / "accuracy" / "embedded_backbone.json").read_text())["results"]
    accuracies = {row["ncm_accuracy"] for row in results if row["images"] == "cifar100" and row["sha256"]}
    assert {float(row[3]) for row in rows.values() if row[3] != "not measured"} == accuracies
    lines = (ROOT / "results" / "accuracy" / "comparison.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["cell"]["dataset"] == "stanford_cars98_192px"]
    labels = {"clip_vit_base_patch16_224": "default, without crops", "deit_tiny_patch16_224": "default, strength 0.1"}
    for wanted in labels.items():
        own = [
            run for run in runs if (run["cell"]["backbone"], run["cell"]["label"]) == wanted and run["cell"]["per_class"] is None
        ]
        assert mean_std([run["ACC"] for run in own]).text(1) in {row[2] for row in rows.values()}


def test_rule() -> None:
    text = " ".join(PAGE.split())
    assert f"at most {MAX_GFLOP[False]:.0f} GFLOP without a GPU" in text
    assert f"and {MAX_GFLOP[True]:.0f} GFLOP with one" in text


def test_every_link_of_the_repository_exists() -> None:
    assert not find_broken_links(ROOT / "docs" / "backbones.md")
