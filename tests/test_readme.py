"""The README is correct: its example runs, its values are those in results/, its commands and links exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from helpers import ROOT, caprompt, square, write_squares
from PIL import Image

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
    for page in (README, *((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "accuracy.md"))):
        assert benchmark.format_table(results["rows"]) in page
    assert results["backbone"] in README
    assert f"on {results['date']}" in README
    assert "seeds 0-2" in README
    assert results["seeds"] == [0, 1, 2]


def test_it_fits_two_screens() -> None:
    assert len(README.splitlines()) <= 115


def test_every_shown_command_exists() -> None:
    shown = set(re.findall(r"^caprompt (\w+)", README, flags=re.MULTILINE))
    assert {"learn", "predict", "serve"} <= shown
    for command in shown:
        assert caprompt(command, "--help").returncode == 0


def test_every_relative_link_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
