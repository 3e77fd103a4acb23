"""The default against its rivals: one column per class order."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grids import make_fake_evidence

from caprompt.metrics import MeanStd
from caprompt.reproduce.targets.class_orders import RIVALS
from caprompt.reproduce.targets.registry import TARGETS


def test_every_order_has_a_column_before_the_means(tmp_path: Path) -> None:
    evidence = make_fake_evidence("orders", tmp_path)
    table = evidence.target.present(evidence).table
    assert table.headings[4:] == ["order 0", "order 1", "ACC", "AF"]
    lines = [line for line in table.lines if line.labels[0] == "digits"]
    assert [line.labels[1] for line in lines] == [row.label for row in RIVALS]
    for line in lines:
        first, second, mean, lost = line.entries
        assert isinstance(first, MeanStd)
        assert isinstance(mean, MeanStd)
        assert isinstance(lost, MeanStd)
        assert second == MeanStd(first.mean + 2)  # each fake cell adds a point, and one for its seed
        assert mean.mean == pytest.approx(first.mean + 1)
        assert (mean.seeds, lost.seeds) == (2, 2)


def test_missing_orders_are_stated_and_left_out_of_the_mean(tmp_path: Path) -> None:
    evidence = make_fake_evidence("orders", tmp_path)
    names = evidence.planned[RIVALS[0].label, "digits", ""]
    shutil.rmtree(evidence.cells_dir / names[0])
    lines = [line for line in evidence.target.present(evidence).table.lines if line.labels == ("digits", RIVALS[0].label)]
    first, second, mean, _ = lines[0].entries
    assert first == "not run"
    assert isinstance(second, MeanStd)
    assert mean == MeanStd(second.mean)


def test_preset_is_budget_and_our_row_is_last() -> None:
    target = TARGETS["orders"]
    assert target.preset == "budget"
    assert [row.label for row in target.rows[-3::2]] == ["CAPrompt, the paper's recipe", "CAPrompt with ridge"]
    assert "RanPAC, 20 epochs" in [row.label for row in target.rows]
