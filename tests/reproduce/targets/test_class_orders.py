"""The default against its rivals: every class order in a column of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grids import pretended

from caprompt.metrics import MeanStd
from caprompt.reproduce.targets.class_orders import RIVALS
from caprompt.reproduce.targets.registry import TARGETS


def test_every_order_has_a_column_and_means_follow(tmp_path: Path) -> None:
    evidence = pretended("orders", tmp_path)
    sheet = evidence.target.present(evidence).sheet
    assert sheet.headings[4:] == ["order 0", "order 1", "ACC", "AF"]
    lines = [line for line in sheet.lines if line.labels[0] == "digits"]
    assert [line.labels[1] for line in lines] == [row.label for row in RIVALS]
    for line in lines:
        first, second, mean, lost = line.entries
        assert isinstance(first, MeanStd)
        assert isinstance(mean, MeanStd)
        assert isinstance(lost, MeanStd)
        assert second == MeanStd(first.mean + 2)  # each cell pretends a point more than the one before, and one for its seed
        assert mean.mean == pytest.approx(first.mean + 1)
        assert (mean.seeds, lost.seeds) == (2, 2)


def test_an_order_that_was_not_run_is_said_to_be_missing_and_the_mean_is_of_the_others(tmp_path: Path) -> None:
    evidence = pretended("orders", tmp_path)
    names = evidence.planned[RIVALS[0].label, "digits", ""]
    shutil.rmtree(evidence.home / names[0])
    lines = [line for line in evidence.target.present(evidence).sheet.lines if line.labels == ("digits", RIVALS[0].label)]
    first, second, mean, _ = lines[0].entries
    assert first == "not run"
    assert isinstance(second, MeanStd)
    assert mean == MeanStd(second.mean)


def test_all_have_the_budget_and_ours_is_the_last() -> None:
    target = TARGETS["orders"]
    assert target.preset == "budget"
    assert [row.label for row in target.rows[-3::2]] == ["CAPrompt, the paper's recipe", "CAPrompt with ridge"]
    assert "RanPAC, 20 epochs" in [row.label for row in target.rows]
