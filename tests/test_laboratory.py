"""benchmarks/_lab.py, which makes many runs on one device, and what the searches and comparisons ask of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import ROOT, write_squares


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _lab
    import search

    yield _lab, search
    for name in ("_lab", "_common", "search"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("method", ["caprompt", "ranpac", "ncm"])
def test_a_point_of_the_search_runs(modules, tmp_path: Path, backbone: Path, method: str) -> None:
    """Images of two tasks, trained for a third of the epochs of the rule, and tested on a share of the training images."""
    lab, search = modules
    for part in ("train", "test"):
        write_squares(tmp_path / part, ["red", "green", "blue", "white"])
    options = search.Point(rate=1.0, crop=0.3, effort=0.33).make_options(method, str(backbone))
    smaller = {"projections": 40} if method in ("caprompt", "ranpac") else {}
    given = {"options": {**options, **smaller}, "validation": 0.4, "per_class": 3, "effort": 0.33}
    cell = lab.Cell("a point", method, str(tmp_path), str(backbone), 2, seed=100, **given)
    result = lab.run(cell)
    assert 0 <= result["ACC"] <= 100
    assert result["image_steps"] == {"caprompt": 7 * 12, "ranpac": 7 * 6, "ncm": 0}[method]
    assert lab.identify(lab.describe(cell)) != lab.identify(lab.describe(lab.Cell(**{**vars(cell), "effort": 1.0})))
