from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from grids import make_fake_evidence

from caprompt.errors import InputError
from caprompt.metrics import MeanStd, mean_std
from caprompt.reproduce.evidence import Evidence
from caprompt.reproduce.measures import given_task
from caprompt.reproduce.targets.registry import TARGETS
from caprompt.reproduce.writers import format_section

ROW = TARGETS["table-taskid"].rows[0]


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return make_fake_evidence("table-taskid", tmp_path)


def get_folder(evidence: Evidence, seed: int) -> Path:
    return evidence.cells_dir / evidence.planned[ROW.label, "digits", ""][seed]


def test_metrics_are_means_over_seeds(evidence: Evidence) -> None:
    runs = evidence.load_runs(ROW, "digits")
    assert not isinstance(runs, str)
    assert evidence.compute_metric(ROW, "digits", "ACC") == mean_std([run.summary()["ACC"] for run in runs])
    results = evidence.read_measures(ROW, "digits", given_task)
    assert not isinstance(results, str)
    assert [each["ACC"] for each in results] == [90.0, 91.0]


def test_missing_seeds_are_noted(evidence: Evidence) -> None:
    shutil.rmtree(get_folder(evidence, 1))
    entry = evidence.compute_metric(ROW, "digits", "ACC")
    assert isinstance(entry, MeanStd)
    assert (entry.seeds, entry.std) == (1, None)
    assert "1 of 2 entries rest on fewer than 2 seeds, or on none" in evidence.notes()
    assert "CIFAR-100, CUB200, ImageNet-R: other scale, so there are no results of ours" in evidence.notes()


def test_cells_not_run_and_failed_cells_are_distinguished(evidence: Evidence) -> None:
    for seed in range(2):
        shutil.rmtree(get_folder(evidence, seed))
    assert evidence.compute_metric(ROW, "digits", "ACC") == "not run"
    folder = get_folder(evidence, 0)
    folder.with_name(f"{folder.name}.failed.json").write_text(json.dumps({"reason": "MemoryError: too large"}))
    assert evidence.compute_metric(ROW, "digits", "ACC") == "failed"
    assert f"failed: {folder.name} (MemoryError: too large)" in evidence.notes()
    assert evidence.get_protocol(ROW) == "honest"


def test_rows_that_an_earlier_version_did_not_plan_are_left_out(tmp_path: Path) -> None:
    evidence = make_fake_evidence("comparison", tmp_path)
    planned = {key: names for key, names in evidence.planned.items() if key[0] != "TUNA"}
    lines = replace(evidence, planned=planned).build_lines(1, lambda row, dataset: [])
    labels = [row.label for row in evidence.target.rows if row.label != "TUNA"]
    assert [line.labels[1] for line in lines][: len(labels) + 1] == [*labels, "every row"]  # of the next dataset


def test_results_of_different_protocols_are_never_averaged(evidence: Evidence) -> None:
    plan = json.loads((get_folder(evidence, 1) / "run.json").read_text())
    (get_folder(evidence, 1) / "run.json").write_text(json.dumps({**plan, "protocol": "released: leaks"}))
    with pytest.raises(InputError, match="different protocols"):
        evidence.compute_metric(ROW, "digits", "ACC")
    with pytest.raises(InputError, match="different protocols"):
        evidence.get_protocol(ROW)


def test_each_machine_is_listed_once(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table3", tmp_path)
    assert evidence.list_machines() == ()  # fake cells have no environment
    for number, folder in enumerate(sorted(path for path in tmp_path.iterdir() if path.is_dir())):
        plan = json.loads((folder / "run.json").read_text())
        plan["environment"] = {"device": f"gpu {number % 2}", "torch": "2", "python": "3", "caprompt": "1"}
        (folder / "run.json").write_text(json.dumps(plan))
    machines = [f"gpu {number}, torch 2, Python 3, caprompt 1" for number in (0, 1)]
    assert sorted(evidence.list_machines()) == machines
    shown = format_section(evidence, evidence.target.present(evidence), "")
    assert all(f"- Run on {machine}.\n" in shown for machine in machines)


def test_each_warning_of_the_runs_is_listed_once(evidence: Evidence) -> None:
    for seed in range(2):
        path = get_folder(evidence, seed) / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "warnings": ["3 of the 9 test images are known"]}))
    assert [note for note in evidence.notes() if "known" in note] == ["digits: 3 of the 9 test images are known"]


def test_number_of_seeds_is_stated(tmp_path: Path) -> None:
    for seeds, words in ((1, "preset budget, one seed. `"), (2, "preset budget, 2 seeds, mean ± standard deviation. `")):
        evidence = make_fake_evidence("table3", tmp_path / str(seeds), seeds=seeds)
        assert words in format_section(evidence, evidence.target.present(evidence), "")
