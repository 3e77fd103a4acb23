from __future__ import annotations

import json
from pathlib import Path

import pytest
from grids import make_fake_evidence, write_fake_cell

from caprompt.errors import ModelFolderError
from caprompt.reproduce import scales
from caprompt.reproduce.plan import explain_no_cells, plan_target, read_record, write_record
from caprompt.reproduce.scales import NO_DATA, OTHER_SCALE, get_scale
from caprompt.reproduce.targets.registry import TARGETS


def test_every_row_and_seed_has_a_cell(tmp_path: Path) -> None:
    evidence, cells = plan_target(TARGETS["table1"], get_scale("tiny"), tmp_path)
    assert evidence.datasets == ("digits", "cifar100", "imagenet-r", "cub200")
    assert len(cells) == len({cell.name for cell in cells}) == 18
    assert evidence.planned["L2P", "cub200", ""] == OTHER_SCALE
    assert {cell.config.seed for cell in cells} == {0, 1}


def test_targets_share_cells(tmp_path: Path) -> None:
    def names(target: str) -> set[str]:
        return {cell.name for cell in plan_target(TARGETS[target], get_scale("tiny"), tmp_path)[1]}

    assert names("fig-curve") == names("table1") == names("table-backbones")
    assert names("table-taskid") <= names("table3")
    assert len(names("fig-hyper") & names("theorem")) == 6  # alpha = 0, beta = 0 and both as they are


def test_paper_backbones_replace_that_of_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scales, "has_backbone", lambda name: True)
    assert list(plan_target(TARGETS["table-backbones"], get_scale("full"), tmp_path)[0].backbones) == ["iBOT-1k", "DINO-1k"]
    assert list(plan_target(TARGETS["table-backbones"], get_scale("tiny"), tmp_path)[0].backbones) == ["own", "iBOT-1k", "DINO-1k"]


def test_finished_cells_need_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(scales, "has_backbone", lambda name: False)
    evidence, cells = plan_target(TARGETS["table3"], get_scale("small"), tmp_path)
    assert not cells
    assert evidence.planned["Base", "cifar100", ""] == NO_DATA
    sentence = explain_no_cells(evidence)
    assert sentence.startswith("nothing of table3 can be run here (cifar100: data not at hand; imagenet-r: data not at hand)")
    assert "caprompt datasets --download" in sentence
    write_fake_cell(get_scale("small").build_cell("caprompt", {"classifier": "aligned"}, "cifar100", "", 1, ()), tmp_path)
    evidence, cells = plan_target(TARGETS["table3"], get_scale("small"), tmp_path)
    assert [cell.config.seed for cell in cells] == [1]
    assert any("fewer than" in note for note in evidence.notes()) is False


def test_only_caprompt_is_run_with_protocol_released(tmp_path: Path) -> None:
    evidence, cells = plan_target(TARGETS["table1"], get_scale("tiny"), tmp_path, "released")
    leaking = {cell.config.method for cell in cells if cell.config.options.get("protocol") == "released"}
    assert leaking == {"caprompt"}
    assert evidence.get_protocol(TARGETS["table1"].rows[-2]) == "released"
    assert evidence.get_protocol(TARGETS["table1"].rows[-1]) == "honest"  # with ridge
    assert evidence.get_protocol(TARGETS["table1"].rows[0]) == "honest"


def test_tables_can_be_rebuilt_from_a_record(tmp_path: Path) -> None:
    evidence = make_fake_evidence("theorem", tmp_path / "cells")
    write_record(evidence, tmp_path / "theorem.json")
    again = read_record(tmp_path / "theorem.json", tmp_path / "cells")
    assert again == evidence
    assert again.target.present(again).table == evidence.target.present(evidence).table
    document = json.loads((tmp_path / "theorem.json").read_text())
    (tmp_path / "theorem.json").write_text(json.dumps({**document, "target": "table9"}))
    with pytest.raises(ModelFolderError, match=r"theorem\.json' is damaged or of another version"):
        read_record(tmp_path / "theorem.json", tmp_path)
