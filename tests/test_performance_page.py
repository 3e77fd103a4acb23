"""The page on speed says what the benchmarks have printed, and nothing else."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What benchmarks/page.py defines."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return runpy.run_path(str(ROOT / "benchmarks" / "page.py"))


def test_its_tables_are_those_of_the_files(page: dict[str, Any]) -> None:
    text = page["PAGE"].read_text(encoding="utf-8")
    assert page["filled"](text) == text
    assert {name for name in re.findall(r"<!-- (\w+) -->", text) if name != "end"} == page["PARTS"].keys()


def test_a_changed_figure_is_put_right(page: dict[str, Any]) -> None:
    text = page["PAGE"].read_text(encoding="utf-8")
    changed = re.sub(r"\| plain fp32 \| 24 \| \d+ ", "| plain fp32 | 24 | 9999 ", text)
    assert changed != text
    assert page["filled"](changed) == text
