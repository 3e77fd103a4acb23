"""docs/performance.md and the README show the tables of results/speed, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

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
    pages = [path.read_text(encoding="utf-8") for path in (tool.PAGE, tool.README)]
    for text in pages:
        assert tool.fill_page(text) == text, "write it again with `make results`"
    shown = {name for text in pages for name in re.findall(r"<!-- (\w+) -->", text) if name != "end"}
    assert tool.FORMATTERS.keys() == shown
    files = {file for name in shown for file in tool.SEVERAL_FILES.get(name, (name,))}
    assert files <= {path.stem for path in tool.RESULTS.iterdir()}


def test_the_readme_quotes_the_benchmarks(tool: ModuleType) -> None:
    seconds = {row["what"]: row["warm_s"] / row["images"] for row in read_rows(tool, "end_to_end")}
    plain = {(row["variant"], row["batch"]): row["images_per_s"] for row in read_rows(tool, "prediction")}
    (row,) = re.findall(r"^\| `predict`, arrays \| (.*) \|$", tool.README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    quoted = [float(rate) for rate in re.findall(r"[\d.]+", row.replace(",", ""))]
    cells = [plain[f"plain {dtype}", batch] for dtype in ("TF32", "bf16") for batch in (24, 256)]
    assert quoted == pytest.approx([1 / seconds["predict, arrays"], *cells], abs=0.5)


def read_rows(tool: ModuleType, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((tool.RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


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
