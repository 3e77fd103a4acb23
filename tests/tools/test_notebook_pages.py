"""Notebooks as pages: text, code and outputs."""

from __future__ import annotations

import doctest
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook_pages", ROOT / "tools" / "notebook_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_has_text_code_and_outputs(tool: ModuleType, tmp_path: Path) -> None:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "text": ["a\n", "b\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "3", "text/html": "<b>3</b>"}},
        {"output_type": "display_data", "data": {"image/png": "AA\nBB\n", "text/plain": "<Figure>"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "First."]},
        {"cell_type": "code", "source": ["print('a')\n", "1 + 2"], "outputs": outputs},
        {"cell_type": "code", "source": "", "outputs": []},
    ]
    (tmp_path / "some.ipynb").write_text(json.dumps({"cells": cells}))
    (page,) = tool.write_pages(tmp_path)
    blocks = page.read_text().split("\n\n")
    assert blocks[0] == "# Title"
    assert "(some.ipynb)" in blocks[1]
    assert blocks[2:] == [
        "First.",
        "```python\nprint('a')\n1 + 2\n```",
        "```text\na\nb\n```",
        "```text\n3\n```",
        "![Output of the cell above](data:image/png;base64,AABB)\n",
    ]


def test_examples(tool: ModuleType) -> None:
    assert doctest.testmod(tool).failed == 0
