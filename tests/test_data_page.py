"""The examples of docs/data.md run, and its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import datasets
import numpy as np
import pytest
from helpers import ROOT, write_squares
from links import find_broken_links

from caprompt import ContinualClassifier

PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL), ids=lambda text: text.split("\n")[0])
def test_example_runs(example: str, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_squares(tmp_path / "photos", ["red", "green"])
    model = ContinualClassifier("ncm", backbone)
    exec(example, {"model": model, "np": np})
    assert "model" not in example or len(model.classes) == 2


def test_every_link_of_the_repository_exists() -> None:
    assert not find_broken_links(ROOT / "docs" / "data.md")
