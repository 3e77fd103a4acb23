from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caprompt.metrics import METRICS, compute_interval, format_interval
from caprompt.report import tables
from caprompt.report.run_data import load_runs


def test_summary_has_a_row_per_run(runs: Path) -> None:
    records = load_runs([runs / "seed0", runs / "plain"])
    table = tables.make_summary_table(records)
    labels = [metric.label for metric in METRICS.values()]
    assert table.columns == ["run", "method", "seed", *labels, "pooled, 95 % interval"]
    assert table.caption == "Metrics of every run, in percent, on 24 test images"
    assert table.columns[3] == "ACC"
    assert list(METRICS) == list(records[0].results.summary())
    for record, row in zip(records, table.rows, strict=True):
        assert row[:3] == [record.name, record.config.method, "0"]
        assert row[3] == f"{record.results.summary()['ACC']:.1f}"
        assert record.predictions is not None
        correct = int((record.predictions.true == record.predictions.answer).sum())
        assert row[-1] == format_interval(compute_interval(correct, 24))


def test_summary_of_runs_with_different_numbers_of_test_images(runs: Path) -> None:
    one, other = load_runs([runs / "seed0", runs / "plain"])
    last = other.results.rows[-1]
    rows = [*other.results.rows[:-1], replace(last, images=(10, *last.images[1:]))]
    table = tables.make_summary_table([one, replace(other, results=replace(other.results, rows=rows))])
    assert table.columns[-1] == "test images"
    assert [row[-1] for row in table.rows] == ["24", "26"]
    assert table.caption == "Metrics of every run, in percent"


def test_means_are_over_seeds_only(runs: Path) -> None:
    records = load_runs([runs / "seed0", runs / "seed1", runs / "plain"])
    groups = tables.group_runs(records)
    assert [(group.name, len(group.runs)) for group in groups] == [("caprompt", 2), ("sequential-prompt", 1)]
    table = tables.make_means_table(groups)
    assert table is not None
    (row,) = table.rows
    mean = sum(record.results.summary()["ACC"] for record in records[:2]) / 2
    assert row[:2] == ["caprompt", "2"]
    assert row[2].startswith(f"{mean:.1f} ± ")
    assert tables.make_means_table(groups[1:]) is None


def test_groups_of_one_method_have_distinct_names(runs: Path) -> None:
    one, other = load_runs([runs / "seed0", runs / "seed1"])
    changed = replace(other, plan={**other.plan, "options": {**other.plan["options"], "alpha": 1.0}})
    assert [group.name for group in tables.group_runs([one, changed])] == ["caprompt (seed0)", "caprompt (seed1)"]


def test_differences_between_settings(runs: Path) -> None:
    records = load_runs([runs / "seed0", runs / "seed1"])
    table = tables.make_settings_table(records, tables.list_settings, "The run")
    assert table.columns == ["setting", "seed0", "seed1"]
    differences = tables.make_differences_table(table, tables.make_settings_table(records, tables.list_options, "Options"))
    assert differences is not None
    assert differences.rows == [["seed", "0", "1"]]
    alone = tables.make_settings_table(records[:1], tables.list_options, "Options")
    assert ["tasks", "2 + 3 + 1 classes", "2 + 3 + 1 classes"] in [list(row) for row in table.rows]
    assert ["epochs", "1"] in [list(row) for row in alone.rows]
    assert tables.make_differences_table(alone) is None


def test_cost_is_not_available_if_not_saved(runs: Path) -> None:
    (record,) = load_runs([runs / "seed0"])
    (saved,), (missing,) = (tables.make_cost_table([each]).rows for each in (record, replace(record, cost={})))
    assert "n/a" not in saved
    assert saved[3] == f"{record.cost['trained_parameters']:,}"
    assert missing.count("n/a") == 5


def test_classes_and_audit(runs: Path) -> None:
    (record,) = load_runs([runs / "seed0"])
    rows = tables.make_classes_table(record).rows
    assert [row[0] for row in rows] == [name for task in record.results.tasks for name in task]
    assert {row[3] for row in rows} == {"4"}
    assert all(" to " in row[2] for row in rows)
    arrangement = {"name": "alone", "accuracy": 90.0, "average_accuracy": 91.0, "changed": 0, "largest_difference": 0.0}
    audit = tables.make_audit_table({"images": 3, "arrangements": [arrangement]})
    assert list(audit.rows[0]) == ["alone", "90.00", "91.00", "0", "0.0e+00"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min")])
def test_format_duration(seconds: float, text: str) -> None:
    assert tables.format_duration(seconds) == text
