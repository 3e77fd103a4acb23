"""The README is correct: its example runs, its values are those in results/, its commands and links exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from helpers import ROOT, caprompt, square, write_squares
from PIL import Image

RESULTS_ROW = r"(?m)^\| ([\w-]+) \| ([^|]+) \| ours \| honest \|.* \| ([^|]+) \| ([^|]+) \|$"
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_squares(tmp_path / "photos" / "week1", ["red", "green"])
    write_squares(tmp_path / "photos" / "week2", ["blue"])
    Image.fromarray(square("blue", 77)).save(tmp_path / "cat.jpg")
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out.strip() in ("red", "green", "blue")


def test_demo_table_is_that_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("demo_benchmark", ROOT / "benchmarks" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    results = json.loads((ROOT / "results" / "accuracy" / "demo.json").read_text(encoding="utf-8"))
    assert benchmark.format_table(results["rows"]) in README
    assert results["backbone"] in README


def test_cifar100_and_tiny_imagenet_table_is_that_of_the_results_page() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = results.partition("## The default against its rivals")[2]
    expected = {(data, row): (acc, af) for data, row, acc, af in re.findall(RESULTS_ROW, section)}
    shown = re.findall(r"^\| ([^|]+) \| ([\d. ±]+) \| ([\d. ±]+) \| ([\w. ]+) \|$", README, flags=re.MULTILINE)
    compared = 0
    for label, acc, af, other in shown:
        row = re.sub(r", default of 0.1.0| on the first task", "", label)
        if ("CIFAR-100", row) in expected:
            assert (acc, af) == expected["CIFAR-100", row]
            assert other == expected["Tiny-ImageNet", row][0]
            compared += 1
    assert compared == 5


def test_every_shown_command_exists() -> None:
    shown = set(re.findall(r"^caprompt (\w+)", README, flags=re.MULTILINE))
    assert {"learn", "predict", "evaluate", "run"} <= shown
    for command in shown:
        assert caprompt(command, "--help").returncode == 0


def test_every_relative_link_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_speeds_are_the_measured_ones() -> None:
    def find_row(name: str, variant: str, size: int) -> dict[str, float]:
        rows = json.loads((ROOT / "results" / "speed" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        return next(row for row in rows if (row["variant"], row["batch"]) == (variant, size))

    unwrapped = " ".join(README.split())
    trained = find_row("train_step", "package, bf16, compiled", 24)["images_per_s"]
    plain, half = (find_row("train_step", f"plain {precision}", 24)["images_per_s"] for precision in ("fp32", "bf16"))
    predicted, one = (find_row("prediction", "bf16, compiled", size) for size in (256, 1))
    assert f"trains {trained:,.0f} images/s in batches of 24" in unwrapped
    assert f"{plain:.0f} in float32, {half:.0f} in bfloat16" in unwrapped
    assert f"predicts {predicted['images_per_s']:,.0f} in batches of 256, or one in {one['ms']:.1f} ms" in unwrapped
