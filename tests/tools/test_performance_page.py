"""docs/performance.md shows the tables of results/speed, and nothing else."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_page", ROOT / "tools" / "performance_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_those_of_the_files(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.fill_page(text) == text, "write it again with `make results`"
    shown = {name for name in re.findall(r"<!-- (\w+) -->", text) if name != "end"}
    assert len(shown) > 5
    assert all((tool.RESULTS / f"{name}.json").is_file() for name in shown)
    assert tool.FORMATTERS.keys() == shown


def test_a_changed_value_is_corrected(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    changed = re.sub(r"\| plain TF32 \| 24 \| \d+ ", "| plain TF32 | 24 | 9999 ", text)
    assert changed != text
    assert tool.fill_page(changed) == text


def test_a_missing_file_is_stated(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.fill_page("<!-- epoch -->\nold\n<!-- end -->", tmp_path) == "<!-- epoch -->\nNot measured yet.\n<!-- end -->"


def test_doctest(tool: ModuleType) -> None:
    import doctest

    assert doctest.testmod(tool).failed == 0
