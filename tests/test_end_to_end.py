"""benchmarks/end_to_end.py runs on a CPU too."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from helpers import ROOT


@pytest.mark.slow
def test_the_benchmark_of_whole_calls_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    words = ["--small", "--projections", "100", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", *words])
    runpy.run_path(str(ROOT / "benchmarks" / "end_to_end.py"), run_name="__main__")
    rows = json.loads((tmp_path / "end_to_end.json").read_text())["rows"]
    names = [row["what"] for row in rows]
    for name in ("predict, arrays", "evaluate, folder of JPEG files", "predict_one, JPEG file", "bare prediction, batch of 1"):
        assert name in names
    assert all(row["warm_s"] > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == len(rows) + 2
