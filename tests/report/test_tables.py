from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caprompt.report import tables
from caprompt.report.run_data import gather


def test_a_line_per_run_with_its_own_figures(runs: Path) -> None:
    records = gather([runs / "seed0", runs / "plain"])
    table = tables.summary_table(records)
    assert table.columns[:4] == ["run", "method", "seed", "ACC"]
    for record, row in zip(records, table.rows, strict=True):
        assert row[:3] == [record.name, record.config.method, "0"]
        assert row[3] == f"{record.results.summary()['ACC']:.1f}"


def test_seeds_are_averaged_and_other_runs_are_not(runs: Path) -> None:
    records = gather([runs / "seed0", runs / "seed1", runs / "plain"])
    groups = tables.grouped(records)
    assert [(group.name, len(group.runs)) for group in groups] == [("caprompt", 2), ("sequential-prompt", 1)]
    table = tables.means_table(groups)
    assert table is not None
    (row,) = table.rows
    mean = sum(record.results.summary()["ACC"] for record in records[:2]) / 2
    assert row[:2] == ["caprompt", "2"]
    assert row[2].startswith(f"{mean:.1f} ± ")
    assert tables.means_table(groups[1:]) is None


def test_groups_of_one_method_are_told_apart(runs: Path) -> None:
    one, other = gather([runs / "seed0", runs / "seed1"])
    changed = replace(other, plan={**other.plan, "options": {**other.plan["options"], "alpha": 1.0}})
    assert [group.name for group in tables.grouped([one, changed])] == ["caprompt (seed0)", "caprompt (seed1)"]


def test_settings_that_differ(runs: Path) -> None:
    records = gather([runs / "seed0", runs / "seed1"])
    table = tables.settings_table(records, tables.settings, "The run")
    assert table.columns == ["setting", "seed0", "seed1"]
    differences = tables.differing(table, tables.settings_table(records, tables.options, "Options"))
    assert differences is not None
    assert differences.rows == [["seed", "0", "1"]]
    alone = tables.settings_table(records[:1], tables.options, "Options")
    assert ["tasks", "2 + 3 + 1 classes", "2 + 3 + 1 classes"] in [list(row) for row in table.rows]
    assert ["epochs", "1"] in [list(row) for row in alone.rows]
    assert tables.differing(alone) is None


def test_cost_says_what_was_not_kept(runs: Path) -> None:
    (record,) = gather([runs / "seed0"])
    (kept,), (lost,) = (tables.cost_table([each]).rows for each in (record, replace(record, cost={})))
    assert "n/a" not in kept
    assert kept[3] == f"{record.cost['trained_parameters']:,}"
    assert lost.count("n/a") == 5


def test_classes_and_audit(runs: Path) -> None:
    (record,) = gather([runs / "seed0"])
    rows = tables.classes_table(record).rows
    assert [row[0] for row in rows] == [name for task in record.results.tasks for name in task]
    arrangement = {"name": "alone", "accuracy": 90.0, "average_accuracy": 91.0, "changed": 0, "largest_difference": 0.0}
    audit = tables.audit_table({"images": 3, "arrangements": [arrangement]})
    assert list(audit.rows[0]) == ["alone", "90.00", "91.00", "0", "0.0e+00"]


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min")])
def test_durations(seconds: float, words: str) -> None:
    assert tables.duration(seconds) == words
