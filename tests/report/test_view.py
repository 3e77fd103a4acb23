from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caprompt.report.run_data import load_runs
from caprompt.report.view import make_report_view


def test_one_run_has_tiles_and_several_have_a_comparison(runs: Path) -> None:
    one = make_report_view(load_runs([runs / "seed0"]), {})
    assert [name for _, name, _ in one["tiles"]] == ["ACC, %", "AF, points", "task identified, %", "training"]
    assert one["differences"] is None
    several = make_report_view(load_runs([runs / "seed0", runs / "seed1", runs / "plain"]), {})
    assert several["tiles"] == []
    assert several["title"] == "caprompt, sequential-prompt on data (3 runs)"
    assert several["differences"] is not None
    assert "seeds" in several["means"].columns


def test_joint_run_has_neither_curve_nor_forgetting(runs: Path) -> None:
    view = make_report_view(load_runs([runs / "joint"]), {})
    assert view["curve"] is None
    assert view["forgetting"] is None
    assert not view["honest"]
    assert "weights" not in [panel["name"] for panel in view["runs"][0]["panels"]]


def test_warnings_name_their_run_and_are_unique(runs: Path) -> None:
    one, other = load_runs([runs / "seed0", runs / "seed1"])
    doubtful = replace(
        one,
        plan={**one.plan, "warnings": ["dubious"], "test": {**one.plan["test"], "sha256": "0"}},
        audit={"clean": False, "warnings": ["dubious"], "images": 1, "arrangements": []},
    )
    assert make_report_view([one, other], {})["warnings"] == []
    warnings = make_report_view([doubtful, other], {})["warnings"]
    assert warnings[0] == "seed0: dubious"
    assert "change with batch composition" in warnings[1]
    assert "tested on different images" in warnings[2]
    assert len(warnings) == 3
    assert make_report_view([doubtful], {})["warnings"][0] == "dubious"


def test_curve_has_a_series_per_group(runs: Path) -> None:
    view = make_report_view(load_runs([runs / "seed0", runs / "seed1", runs / "plain"]), {})
    assert view["curve"]["chart"].count("<polyline") == 2
    assert view["curve"]["chart"].count("<polygon") == 1
    assert "sequential-prompt" in view["curve"]["legend"]
    assert [row[0] for row in view["curve"]["table"].rows] == ["caprompt", "sequential-prompt"]
