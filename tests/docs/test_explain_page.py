"""The figures of docs/explain.md are those that benchmarks/explain.py printed."""

from __future__ import annotations

import re

from helpers import ROOT

ROW = re.compile(r"^\| (\d+)% \| ([\d.]+) \| ([\d.]+ ± [\d.]+) \| ([\d.]+) \| (\d+)% \|$", flags=re.MULTILINE)


def test_the_deletion_test_is_the_measured_one() -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    rows = ROW.findall((ROOT / "results" / "explain.txt").read_text(encoding="utf-8"))
    assert len(rows) == 6  # three shares of the patches, two models
    for share, marked, others, ratio, larger in rows:
        assert f"| {share} % | {marked} | {others} | {ratio} | {larger} % |" in page
        assert float(ratio) >= 2
