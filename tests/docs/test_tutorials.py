"""The tutorials docs/tutorials/photos.md and docs/tutorials/method.md run from top to bottom, and print what they show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from code_blocks import find_blocks
from tutorial_outputs import find_difference, run_page

TUTORIALS = ROOT / "docs" / "tutorials"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photos.md", "method.md"])
def test_outputs_are_the_real_ones(name: str, tmp_path: Path) -> None:
    page = (TUTORIALS / name).read_text(encoding="utf-8")
    difference = find_difference(page, run_page(page, tmp_path))
    assert difference is None, f"{difference}\nif that is intended, run: python tools/tutorial_outputs.py docs/tutorials/{name}"


def test_the_method_has_at_most_60_lines() -> None:
    page = (TUTORIALS / "method.md").read_text(encoding="utf-8")
    (method,) = [block.text for block in find_blocks(page) if block.file == "streaming_lda.py"]
    assert len(method.splitlines()) <= 60
