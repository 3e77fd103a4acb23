"""The figures on docs/accuracy.md, and those that other pages take from it, are those in results/."""

from __future__ import annotations

import json
import re

from helpers import ROOT

from caprompt.backbones.recommendation import MEASURED
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.metrics import mean_std

RESULTS_ROW = r"(?m)^\| ([\w-]+) \| ([^|]+) \| ours \| honest \|.* \| ([^|]+) \| ([^|]+) \|$"
PAGE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


ROW_NAMES = {
    "the default": "default",
    "the default, half kept": "default, half kept",
    "the default, without crops": "default, without crops",
    "the default, reading the last block only": "last block only",
    "ridge regression on frozen features": "ridge, frozen features",
    "RanPAC, the first task for 20 epochs": "RanPAC, 20 epochs",
    "nearest class mean of frozen features": "nearest class mean",
    **{
        f"{name}, searched": f"{name.lower()}, searched"
        for name in ("MOS", "SSIAT", "TUNA", "RanPAC", "MoAL", "HiDe-Prompt", "EASE")
    },
    **{f"{name}, authors' settings": f"{name.lower()}, authors' settings" for name in ("MOS", "SSIAT", "TUNA", "RanPAC", "MoAL")},
}


BACKBONES = {
    "DeiT-Ti": "deit_tiny_patch16_224",
    "CLIP ViT-B/16": "clip_vit_base_patch16_224",
    "embedded backbone": "vit_mini_patch8_64",
}


def find_result(data: str, backbone: str, per_class: str, row: str) -> tuple[str, str, str]:
    """Return ACC, forgetting and image steps of a row of the results page."""
    pattern = rf"^\| {data} \| {backbone} \| {per_class} \| {row} \| [^|]+ \| (.+?) \| (.+?) \| (.+?) \|$"
    (found,) = re.findall(pattern, RESULTS, flags=re.MULTILINE)
    return found


def test_cars_tables_are_those_of_the_results_page() -> None:
    section = PAGE.partition("## Photos")[2].partition("\n## ")[0]
    compared, heads = 0, list[str]()
    for line in section.splitlines():
        cells = line.strip("| ").split(" | ")
        if not line.startswith("| "):
            continue
        if cells[0].startswith(("ACC in percent", "photos of each class")):
            heads = cells
        elif heads[0] == "ACC in percent":
            backbone = BACKBONES[heads[1].partition(",")[0]]
            expected = find_result("stanford_cars98_192px", backbone, "all", ROW_NAMES[cells[0]])
            assert tuple(cells[1:]) == expected
            compared += 1
        else:
            compared += check_few_images("stanford_cars98_192px", heads, cells)
    assert compared == 12 + 5 + 15 + 3 * 20
    before = find_result("stanford_cars98_192px", "deit_tiny_patch16_224", "all", "default, strength 0.1")[0]
    assert f"the default had {before}." in " ".join(section.split())
    assert f"reach {find_result('stanford_cars98_192px', 'deit_tiny_patch16_224', 'all', 'caprompt, searched')[0]}." in " ".join(
        section.split()
    )


def check_few_images(data: str, heads: list[str], cells: list[str]) -> int:
    """Compare a line with the results page; return how many figures it has."""
    backbone = BACKBONES[heads[0].rpartition(", ")[2]]
    for head, value in zip(heads[1:], cells[1:], strict=True):
        assert value == find_result(data, backbone, cells[0], head.replace("the default", "default"))[0]
    return len(cells) - 1


def test_few_images_of_other_data_are_those_of_the_results_page() -> None:
    tables = [block.splitlines() for block in PAGE.split("\n\n") if block.startswith("| images of each class")]
    assert len(tables) == 6
    for data, table in zip(["cifar100"] * 3 + ["tinyimagenet200_64px"] * 3, tables, strict=True):
        lines = [line.strip("| ").split(" | ") for line in table]
        assert sum(check_few_images(data, lines[0], line) for line in lines[2:]) == 20


def test_searched_rows_of_cifar100_are_those_of_the_results_page() -> None:
    section = PAGE.partition("## CIFAR-100 and Tiny-ImageNet")[2].partition("\nThe other methods")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    for label, acc, *others in rows:
        expected = find_result("cifar100", "deit_tiny_patch16_224", "all", ROW_NAMES[label])
        assert (acc, *others) == expected
    assert len(rows) == 11
    rest = re.findall(r"(?m)^\| cifar100 \| deit_tiny_patch16_224 \| all \| ([\w-]+, searched) \| [\d., ]+ \| ([\d.]+)", RESULTS)
    others = [float(acc) for label, acc in rest if label not in {ROW_NAMES[row[0]] for row in rows}]
    assert len(others) == 10
    assert f"The other methods have {min(others):.1f} to {max(others):.1f} " in " ".join(PAGE.split())


def test_rows_of_cifar100_with_authors_settings_are_those_of_the_results_page() -> None:
    section = PAGE.partition("## CIFAR-100 and Tiny-ImageNet")[2].partition("\nThe other methods")[2].partition("\nSo MoAL")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    for label, *figures in rows:
        assert tuple(figures) == find_result("cifar100", "deit_tiny_patch16_224", "all", ROW_NAMES[label])
    assert len(rows) == len(
        re.findall(r"(?m)^\| cifar100 \| deit_tiny_patch16_224 \| all \| [\w-]+, authors' settings \|", RESULTS)
    )


def test_other_methods_with_clip_are_those_of_the_results_page() -> None:
    section = (
        PAGE.partition("## Photos")[2].partition("\n## ")[0].partition("| CLIP ViT-B/16, three")[2].partition("Fewer photos")[0]
    )
    shown = {ROW_NAMES[label] for label in re.findall(r"(?m)^\| ([^|]+) \| [\d.]+[ ±]", section) if label in ROW_NAMES}
    pattern = r"(?m)^\| stanford_cars98_192px \| clip_vit_base_patch16_224 \| all \| ([\w-]+, searched) \| ([\d., ]+) \| ([\d.]+)"
    rest = [(float(mean), orders) for label, orders, mean in re.findall(pattern, RESULTS) if label not in shown]
    assert len(rest) == 10
    assert {orders.count(",") for _, orders in rest} == {2}
    assert f"The other methods have {min(rest)[0]:.1f} to {max(rest)[0]:.1f} " in " ".join(section.split())


def test_tiny_imagenet_of_the_default_is_that_of_the_results_page() -> None:
    result = find_result("tinyimagenet200_64px", "deit_tiny_patch16_224", "all", "default, without crops")[0]
    assert f"| {result} (three orders) |" in PAGE
    result = find_result("tinyimagenet200_64px", "deit_tiny_patch16_224", "all", "default")[0]
    assert f"DeiT-Ti: {result} (three class orders)" in " ".join(PAGE.split())


def test_the_default_without_crops_is_that_of_the_calibration_benchmark() -> None:
    runs = json.loads(read("results/accuracy/calibration.json"))["runs"]
    accuracy = mean_std([run["accuracy"] for run in runs if run["data"] == "cifar100"])
    assert f"| the default, without crops | {accuracy.text(2)} |" in PAGE.partition("## CIFAR-100 and Tiny-ImageNet")[2]


def test_cifar100_and_tiny_imagenet_table_is_that_of_the_results_page() -> None:
    section = RESULTS.partition("## The default against its rivals")[2]
    expected = {(data, row): (acc, af) for data, row, acc, af in re.findall(RESULTS_ROW, section)}
    shown = re.findall(r"^\| ([^|]+) \| ([\d. ±]+) \| ([\d. ±]+) \| ([\w. ]+) \|$", PAGE, flags=re.MULTILINE)
    compared = 0
    for label, acc, af, other in shown:
        row = re.sub(r", default of 0.1.0| on the first task", "", label)
        if ("CIFAR-100", row) in expected:
            assert (acc, af) == expected["CIFAR-100", row]
            assert other == expected["Tiny-ImageNet", row][0]
            compared += 1
    assert compared == 5


def test_speeds_are_the_measured_ones() -> None:
    def find_row(name: str, variant: str, size: int) -> dict[str, float]:
        rows = json.loads(read(f"results/speed/{name}.json"))["rows"]
        return next(row for row in rows if (row["variant"], row["batch"]) == (variant, size))

    unwrapped = " ".join(PAGE.split())
    default = find_row("train_step", "default recipe, bf16", 24)["images_per_s"]
    trained = find_row("train_step", "package, bf16, compiled", 24)["images_per_s"]
    plain, half = (find_row("train_step", f"plain {precision}", 24)["images_per_s"] for precision in ("TF32", "bf16"))
    calls = {row["what"]: row for row in json.loads(read("results/speed/end_to_end.json"))["rows"]}
    arrays, files = (calls[f"predict, {what}"] for what in ("arrays", "JPEG files"))
    assert f"`predict` takes {1e3 * calls['predict_one, array']['warm_s']:.1f} ms for one image in memory" in unwrapped
    assert f"predicts {arrays['images'] / arrays['warm_s']:,.0f} images/s of 224 pixels in memory" in unwrapped
    assert f"and {files['images'] / files['warm_s']:,.0f} JPEG files/s of 500 x 375 pixels" in unwrapped
    assert f"a task of 560 files takes {calls['learn, 5 epochs, whole call']['warm_s']:.1f} s to learn in five epochs" in unwrapped
    assert f"trains {default:,.0f} images/s in batches of 24; that of the paper's recipe, compiled, {trained:,.0f}" in unwrapped
    assert f"{plain:.0f} in TF32, {half:.0f} in bfloat16" in unwrapped


def test_the_leak_is_worth_what_the_results_page_says() -> None:
    page = read("docs/explanation/leak.md")
    for settings, label in (("paper", "honest"), ("paper, as released", "released: with the leak, in training and at the test")):
        ((acc,),) = [re.findall(rf"^\| {settings} \| natural \| 8 \| [\d.]+ \| ([\d.]+) \|", RESULTS, flags=re.MULTILINE)]
        assert f"| {label} | {acc} |" in page


def test_backbones_in_the_how_to_are_the_measured_ones() -> None:
    page = read("docs/how-to/choose-a-backbone.md")
    for name, measured in MEASURED.items():
        shown = "the embedded one, nothing to download" if name == DEFAULT_BACKBONE else f"`{name}`"
        assert f"| {shown} | {measured.cars} % |" in page
