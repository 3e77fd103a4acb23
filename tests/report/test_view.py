from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from caprompt.report.run_data import gather
from caprompt.report.thumbnails import Thumbnails
from caprompt.report.view import report_view, shown_images


def test_one_run_has_tiles_and_several_have_a_comparison(runs: Path) -> None:
    one = report_view(gather([runs / "seed0"]), {})
    assert [name for _, name, _ in one["tiles"]] == ["ACC, %", "AF, points", "task identified, %", "training"]
    assert one["differences"] is None
    several = report_view(gather([runs / "seed0", runs / "seed1", runs / "plain"]), {})
    assert several["tiles"] == []
    assert several["title"] == "caprompt, sequential-prompt on data (3 runs)"
    assert several["differences"] is not None
    assert "seeds" in several["means"].columns


def test_a_joint_run_has_neither_curve_nor_forgetting(runs: Path) -> None:
    view = report_view(gather([runs / "joint"]), {})
    assert view["curve"] is None
    assert view["forgetting"] is None
    assert not view["honest"]
    assert view["runs"][0]["cycles"] == []


def test_warnings_name_their_run_and_stand_once(runs: Path) -> None:
    one, other = gather([runs / "seed0", runs / "seed1"])
    spoilt = replace(
        one,
        plan={**one.plan, "warnings": ["doubtful"], "test": {**one.plan["test"], "sha256": "0"}},
        audit={"clean": False, "warnings": ["doubtful"], "images": 1, "arrangements": []},
    )
    assert report_view([one, other], {})["warnings"] == []
    found = report_view([spoilt, other], {})["warnings"]
    assert found[0] == "seed0: doubtful"
    assert "depend on the other images" in found[1]
    assert "tested on different images" in found[2]
    assert len(found) == 3
    assert report_view([spoilt], {})["warnings"][0] == "doubtful"


def test_only_mistakes_with_a_picture_are_in_the_gallery(runs: Path) -> None:
    (run,) = gather([runs / "plain"])
    images = shown_images(run)
    assert images, "a model that learned for one epoch should be wrong somewhere"
    assert report_view([run], {})["runs"][0]["worst"] == []
    pictures = {run.name: Thumbnails({images[0]: "data:,"})}
    assert [mistake.image for mistake in report_view([run], pictures)["runs"][0]["worst"]] == [images[0]]


def test_the_curve_has_a_series_per_kind_of_run(runs: Path) -> None:
    view = report_view(gather([runs / "seed0", runs / "seed1", runs / "plain"]), {})
    assert view["curve"]["figure"].count("<polyline") == 2
    assert view["curve"]["figure"].count("<polygon") == 1
    assert "sequential-prompt" in view["curve"]["legend"]
    assert [row[0] for row in view["curve"]["numbers"].rows] == ["caprompt", "sequential-prompt"]
