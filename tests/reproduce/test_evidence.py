from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from grids import pretended

from caprompt.errors import InputError
from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence
from caprompt.reproduce.measures import given_task
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.reproduce.writers import section

ROW = TARGETS["table-taskid"].rows[0]


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return pretended("table-taskid", tmp_path)


def folder_of(evidence: Evidence, seed: int) -> Path:
    return evidence.home / evidence.planned[ROW.label, "digits", ""][seed]


def test_figures_are_means_over_seeds(evidence: Evidence) -> None:
    runs = evidence.runs(ROW, "digits")
    assert not isinstance(runs, str)
    assert evidence.metric(ROW, "digits", "ACC") == mean_std([run.summary()["ACC"] for run in runs])
    found = evidence.found(ROW, "digits", given_task)
    assert not isinstance(found, str)
    assert [each["ACC"] for each in found] == [90.0, 91.0]


def test_a_seed_too_few_is_said(evidence: Evidence) -> None:
    shutil.rmtree(folder_of(evidence, 1))
    entry = evidence.metric(ROW, "digits", "ACC")
    assert isinstance(entry, MeanStd)
    assert (entry.seeds, entry.spread) == (1, None)
    assert "1 of 2 rest on fewer than 2 seeds, or on none" in evidence.notes()
    assert "CIFAR-100, CUB200, ImageNet-R: other scale, so there are no figures of ours" in evidence.notes()


def test_nothing_run_and_failed_are_told_apart(evidence: Evidence) -> None:
    for seed in range(2):
        shutil.rmtree(folder_of(evidence, seed))
    assert evidence.metric(ROW, "digits", "ACC") == "not run"
    place = folder_of(evidence, 0)
    place.with_name(f"{place.name}.failed.json").write_text(json.dumps({"reason": "MemoryError: too large"}))
    assert evidence.metric(ROW, "digits", "ACC") == "failed"
    assert f"failed: {place.name} (MemoryError: too large)" in evidence.notes()
    assert evidence.protocol_of(ROW) == "honest"


def test_figures_of_different_protocols_are_never_averaged(evidence: Evidence) -> None:
    plan = json.loads((folder_of(evidence, 1) / "run.json").read_text())
    (folder_of(evidence, 1) / "run.json").write_text(json.dumps({**plan, "protocol": "released: leaks"}))
    with pytest.raises(InputError, match="different protocols"):
        evidence.metric(ROW, "digits", "ACC")
    with pytest.raises(InputError, match="different protocols"):
        evidence.protocol_of(ROW)


def test_where_cells_were_run_is_told_once(tmp_path: Path) -> None:
    evidence = pretended("table3", tmp_path)
    assert evidence.machines() == ()  # what only seems to have been run has no machine
    for number, folder in enumerate(sorted(path for path in tmp_path.iterdir() if path.is_dir())):
        plan = json.loads((folder / "run.json").read_text())
        plan["environment"] = {"device": f"gpu {number % 2}", "torch": "2", "python": "3", "caprompt": "1"}
        (folder / "run.json").write_text(json.dumps(plan))
    told = [f"gpu {number}, torch 2, Python 3, caprompt 1" for number in (0, 1)]
    assert sorted(evidence.machines()) == told
    shown = section(evidence, evidence.target.present(evidence), "")
    assert all(f"- Run on {where}.\n" in shown for where in told)


def test_what_runs_have_noted_of_their_data_is_said_once(evidence: Evidence) -> None:
    for seed in range(2):
        path = folder_of(evidence, seed) / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "warnings": ["3 of the 9 test images are known"]}))
    assert [note for note in evidence.notes() if "known" in note] == ["digits: 3 of the 9 test images are known"]


def test_one_seed_has_no_spread_to_speak_of(tmp_path: Path) -> None:
    for seeds, words in ((1, "preset budget, one seed. `"), (2, "preset budget, 2 seeds, mean ± standard deviation. `")):
        evidence = pretended("table3", tmp_path / str(seeds), seeds=seeds)
        assert words in section(evidence, evidence.target.present(evidence), "")
