"""docs/robustness.md shows the table of results/robustness.json, and nothing else."""

from __future__ import annotations

import doctest
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT
from robust.registry import NAMES


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("robustness_page", ROOT / "tools" / "robustness_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_is_that_of_the_file(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.fill_page(text) == text, "write it again with `make results`"


def test_result_covers_every_attack_and_has_no_failure(tool: ModuleType) -> None:
    rows = json.loads(tool.RESULTS.read_text(encoding="utf-8"))["rows"]
    assert [row["kind"] for row in rows] == list(NAMES)
    assert all(row["refused"] + row["accepted"] == row["tries"] for row in rows)


def test_a_missing_file_is_stated(tool: ModuleType, tmp_path: Path) -> None:
    filled = tool.fill_page("<!-- robustness -->\nold\n<!-- end -->", tmp_path / "none.json")
    assert filled == "<!-- robustness -->\nNot measured yet.\n<!-- end -->"


def test_doctest(tool: ModuleType) -> None:
    assert doctest.testmod(tool).failed == 0
