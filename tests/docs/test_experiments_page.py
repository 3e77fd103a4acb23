"""The tables of searches on docs/experiments.md are those of the logs in results/search."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from statistics import mean
from typing import Any

from helpers import ROOT

PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
DATA = {"CIFAR-100": "cifar100", "Cars": "stanford_cars98_192px"}
BACKBONES = {"DeiT-Ti": "deit_tiny_patch16_224", "embedded": "vit_mini_patch8_64"}
VARIANTS = ("default", "half of the epochs", "a fifth of the epochs", "not trained", "nearest class mean", "ridge, frozen features")


def read_log(name: str) -> list[dict[str, Any]]:
    lines = (ROOT / "results" / "search" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read_rows(title: str) -> list[list[str]]:
    """Return the cells of the first table of a section, without its head."""
    section = re.split(rf"^#+ {title}$", PAGE, flags=re.MULTILINE)[1].split("\n#")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def test_search_of_all_methods() -> None:
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in read_log("methods.jsonl"):
        runs[record["cell"]["dataset"], record["cell"]["method"]].append(record)
    found = json.loads((ROOT / "results" / "search" / "found.json").read_text(encoding="utf-8"))
    shown = {row[0].strip("`"): row[1:] for row in read_rows("The same search for every method")}
    assert {(data, method) for data in DATA.values() for method in shown} == set(runs)
    for method, cells in shown.items():
        trains = method not in ("ncm", "ridge")
        for data, accuracy, point in zip(DATA.values(), cells[::2], cells[1::2], strict=True):
            own = runs[data, method]
            assert len(own) == (12 if trains else 1)
            best = max(own, key=lambda record: float(record["ACC"]))
            assert accuracy == f"{best['ACC']:.1f}"
            settings = found[data][method]
            assert best["cell"]["effort"] == settings["effort"]
            assert best["cell"]["options"]["crop_scale"][0] == settings["crop"]
            shown_effort = {0.33: "1/3", 1.0: "1"}[settings["effort"]]
            assert point == (f"{settings['rate']:g}, {settings['crop']:g}, {shown_effort}" if trains else "none")


def test_very_few_images() -> None:
    runs: dict[tuple[str, str, int, str], list[float]] = defaultdict(list)
    for record in read_log("few.jsonl"):
        cell = record["cell"]
        runs[cell["dataset"], cell["backbone"], cell["per_class"], cell["label"]].append(record["ACC"])
    rows = read_rows("Very few images")
    assert len(rows) == 12
    for place, count, *accuracies in rows:
        data, backbone = place.split(", ")
        for variant, accuracy in zip(VARIANTS, accuracies, strict=True):
            own = runs[DATA[data], BACKBONES[backbone], int(count), variant]
            assert len(own) == 2
            assert accuracy == f"{mean(own):.1f}"


def test_strengths_of_frozen_features_are_those_of_the_log() -> None:
    lines = (ROOT / "results" / "search" / "strength.txt").read_text(encoding="utf-8").splitlines()
    logged = {tuple(cells[:5]): cells[5:] for cells in (line.strip("| ").split(" | ") for line in lines) if cells[0] != "data"}
    known = {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}
    blocks = {("Tiny-ImageNet", "embedded"): "1", ("CIFAR-100", "embedded"): "3", ("Cars", "embedded"): "3"}
    section = PAGE.partition("### Strength of the regression, once more")[2].partition("With trained prompts")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith(tuple(f"| {name}" for name in known))]
    for label, images, *accuracies in rows:
        data, backbone = label.removesuffix(", whole").split(", ")
        place = known[data], BACKBONES[backbone], blocks.get((data, backbone), "6"), "14", images
        assert accuracies == logged[place], label
    assert len(rows) == 20


def test_strengths_with_trained_prompts_are_those_of_the_log() -> None:
    names = ("strength 0.1", "ridge_strength=0.4", "ridge_strength=1.0", "default")
    names += ("RanPAC, 20 epochs", "ridge, frozen features", "nearest class mean")
    runs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for record in read_log("strength.jsonl"):
        runs[record["cell"]["dataset"], str(record["cell"]["per_class"]), record["cell"]["label"]].append(record["ACC"])
    known = {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}
    section = (
        PAGE.partition("### Strength of the regression, once more")[2].partition("In small folders")[0].partition("With trained")[2]
    )
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith(tuple(f"| {name}" for name in known))]
    assert len(rows) == 3
    for data, images, *accuracies in rows:
        found = [runs[known[data], images, name] for name in names]
        assert accuracies == [f"{mean(own):.1f}" if own else "-" for own in found]


def test_small_folders_are_those_of_the_log() -> None:
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in read_log("small_folders.jsonl"):
        if record["cell"]["classes"] == 14:
            runs[record["cell"]["dataset"], record["cell"]["label"]].append(record["ACC"])
    names = (
        "default",
        "epochs=7",
        "epochs=1 learning_rate=1e-9",
        "RanPAC, 20 epochs",
        "ridge, frozen features",
        "nearest class mean",
    )
    section = PAGE.partition("In small folders, 14 classes")[2].partition("### Outcome")[0]
    for label, data in {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}.items():
        shown = [f"{mean(runs[data, name]):.1f}" if runs[data, name] else "-" for name in names]
        assert f"| {label} | {' | '.join(shown)} |" in section


def group_accuracies(log: str) -> dict[tuple[str, str, str, str], list[float]]:
    """Return the accuracies of a log by data, backbone, images of a class and label."""
    runs: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for record in read_log(log):
        cell = record["cell"]
        runs[cell["dataset"], cell["backbone"], str(cell["per_class"]), cell["label"]].append(record["ACC"])
    return runs


def test_tables_of_what_training_gains_are_those_of_the_logs() -> None:
    known = {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}
    rivals = ("RanPAC, 20 epochs", "ridge, frozen features", "nearest class mean")
    shorter = ("a third of the epochs", "a third of the rate", "first pass unprompted")
    partly = ("later task not trained", "first task not trained", "not trained")
    kept = ("default", "three quarters of the change", "half of the change", "not trained", *rivals)
    tables = (
        ("training_gain.jsonl", ("default", "half of the change", *shorter, *partly), 9),
        ("kept_change.jsonl", kept, 10),
        ("kept_change.jsonl", ("default", "7 epochs", "20 epochs", *rivals), 6),
    )
    section = PAGE.partition("### A part of what training changes")[2].partition("### Outcome")[0]
    blocks = [block for block in section.split("\n\n") if block.startswith("| |")]
    for block, (log, labels, count) in zip(blocks[:3], tables, strict=True):
        runs, compared = group_accuracies(log), 0
        for place, *cells in (line.strip("| ").split(" | ") for line in block.splitlines()[2:]):
            data, backbone, *part = place.split(", ")
            if part:  # all classes of Cars, by another log
                continue
            images = cells.pop(0) if len(cells) > len(labels) else "2"
            own = [runs[known[data], BACKBONES[backbone], images, label] for label in labels]
            assert cells == [f"{mean(each):.1f}" if each else "-" for each in own], place
            compared += 1
        assert compared == count


def test_parts_of_the_change_with_two_images_are_those_of_the_log() -> None:
    known = {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}
    parts = ("20 epochs, an eighth kept", "20 epochs, a quarter kept", "20 epochs, half kept", "7 epochs, a quarter kept")
    large = ("not trained", *parts)
    small = ("not trained", "20 epochs, a quarter kept", "ridge, frozen features", "nearest class mean")
    section = PAGE.partition("By the rule, a quarter of the change is kept")[2].partition("### Outcome")[0]
    blocks = [block.splitlines()[2:] for block in section.split("\n\n") if block.startswith("| |")]
    for lines, labels, is_small, count in zip(blocks, (large, small), (False, True), (5, 3), strict=True):
        assert len(lines) == count
        for place, *cells in (line.strip("| ").split(" | ") for line in lines):
            data, _, backbone = place.partition(", ")
            projections = 10_000 if data == "Cars" and not is_small else 2_000
            wanted = known[data], BACKBONES[backbone or "embedded"], projections, is_small
            own: dict[str, list[float]] = defaultdict(list)
            for record in read_log("two_images.jsonl"):
                cell = record["cell"]
                found = cell["dataset"], cell["backbone"], cell["options"].get("projections", 2_000), cell["classes"] == 14
                if found == wanted:
                    own[cell["label"]].append(record["ACC"])
            num_orders = max(map(len, own.values()))
            assert cells == [f"{mean(own[label]):.1f}" if len(own[label]) == num_orders else "-" for label in labels], place


def test_judges_of_training_are_those_of_the_log() -> None:
    judged = [record for record in read_log("training_gain.jsonl") if record["cell"]["label"] == "judge"]
    by_images = [fold["others"]["gain"] > 0 for record in judged for fold in record["images, 1.00"]]
    by_classes = [record["classes"]["other half"]["gain"] > 0 for record in judged]
    assert f"in {sum(by_images)} of {len(by_images)} cases" in PAGE
    assert f"in {sum(by_classes)} of {len(by_classes)};" in PAGE


def read_selection() -> dict[tuple[str, str, str], list[str]]:
    """Return the accuracies by data, backbone and images of a class: four columns for the usual crop, four for whole images."""
    lines = (ROOT / "results" / "search" / "selection.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.strip("| ").split(" | ") for line in lines if not line.startswith(("| data", "|---")))
    return {(data, backbone, images): accuracies for data, backbone, _, images, *accuracies in rows}


def test_crops_and_blocks_are_those_of_the_log() -> None:
    logged, compared = read_selection(), 0
    known = {**DATA, "Tiny-ImageNet": "tinyimagenet200_64px"}
    backbones = {**BACKBONES, "CLIP": "clip_vit_base_patch16_224"}
    section = PAGE.partition("Only whole images stand out")[2].partition("### Strength of the regression, once more")[0]
    for line in section.splitlines():
        label, *cells = line.strip("| ").split(" | ")
        data, _, backbone = label.removesuffix(", whole").partition(", ")
        if data not in known:
            continue
        place = known[data], backbones[backbone]
        if len(cells) == 4:  # crops: several numbers of images, the sides, and the last block's accuracies with either crop
            rows = [logged[(*place, images)] for images in cells[0].split(", ")]
            assert cells[2:] == [", ".join(row[column] for row in rows) for column in (0, 4)]
        else:
            first = 4 if label.endswith(", whole") else 0
            assert cells[1:] == logged[(*place, cells[0])][first : first + 4]
        compared += 1
    assert compared == 5 + 10


def test_numbers_of_projections_are_those_of_the_log() -> None:
    names = {"Cars": "stanford_cars98_192px", "CIFAR-100": "cifar100", "Tiny-ImageNet": "tinyimagenet200_64px"}
    log = (ROOT / "results" / "search" / "projections.txt").read_text(encoding="utf-8").splitlines()
    section = PAGE.partition("### Number of projections")[2].partition("\n### ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(log)
    for (place, *cells), line in zip(rows, log, strict=True):
        data, backbone, blocks = place.split(", ")
        assert line.startswith(f"{names[data]}, {BACKBONES[backbone]}, ")
        assert f"last {blocks.split()[-1] if blocks != 'last' else 1} blocks" in line
        assert cells == re.findall(r": ([\d.]+)(?=,|$)", line.partition("predicted")[2])


def test_5000_projections_cost_what_the_page_says() -> None:
    def read_few_images(name: str, label: str) -> dict[tuple[str, int, int], float]:
        lines = (ROOT / "results" / "accuracy" / name).read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if record["cell"]["label"] == label and record["cell"]["per_class"]]
        own = [record for record in records if record["cell"]["backbone"] == "vit_mini_patch8_64"]
        return {tuple(record["cell"][key] for key in ("dataset", "per_class", "seed")): record["ACC"] for record in own}

    fewer, usual = (
        read_few_images("earlier_defaults.jsonl", "default, 5,000 projections"),
        read_few_images("comparison.jsonl", "default"),
    )
    assert fewer.keys() == usual.keys()
    assert len(usual) == 45
    costs = {key: usual[key] - fewer[key] for key in usual}
    of_cars = [cost for (data, count, _), cost in costs.items() if data.startswith("stanford_cars") and count == 20]
    text = f"cost {sum(costs.values()) / 45:.2f} points on average and {sum(of_cars) / 3:.2f} with twenty photos of Cars"
    assert text in " ".join(PAGE.split())


def test_one_image_is_that_of_the_log() -> None:
    found: dict[str, list[float]] = {}
    for record in read_log("one_image.jsonl"):
        found.setdefault(record["cell"]["label"], []).append(record["ACC"])
    means = {label: f"{sum(values) / len(values):.1f}" for label, values in found.items()}
    shown = (
        f"{means['default']}, RanPAC {means['RanPAC, 20 epochs']}, ridge regression on frozen features "
        f"{means['ridge, frozen features']}, nearest class mean {means['nearest class mean']}."
    )
    assert shown in " ".join(PAGE.split())
