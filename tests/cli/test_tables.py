from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from caprompt import InputError
from caprompt.cli import tables
from caprompt.experiments.run_folder import RunResult, TaskResult
from caprompt.outputs import Evaluation, Prediction, Score, TaskScore


def text(table: object) -> list[list[str]]:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(table)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def results(acc: float = 85.0, **changes: str) -> RunResult:
    rows = [TaskResult((90.0,), (10,), 100.0, 2.0, 1.0), TaskResult((2 * acc - 100, 100.0), (10, 30), 95.0, 2.0, 1.0)]
    return RunResult(Path("x"), [["a", "b"], ["c"]], rows, **changes)


def test_run_table_has_a_line_per_task() -> None:
    lines = text(tables.run_table(results()))
    assert ["1", "a,", "b", "90.0", "0.0", "90.0", "70.0"] in lines
    assert ["2", "c", "85.0", "20.0", "100.0", "100.0"] in lines


def test_run_table_of_a_joint_run_has_the_accuracy_of_each_task() -> None:
    joint = RunResult(Path("x"), [["a", "b"], ["c"]], [TaskResult((70.0, 100.0), (10, 30), 95.0, 2.0, 1.0)], joint=True)
    lines = text(tables.run_table(joint))
    assert ["1", "a,", "b", "70.0"] in lines
    assert ["2", "c", "100.0"] in lines


def test_seeds_table_adds_mean_and_spread_from_two_on() -> None:
    assert not any("mean" in line for line in text(tables.seeds_table({0: results()})))
    lines = text(tables.seeds_table({0: results(), 1: results(acc=95.0)}))
    mean = next(line for line in lines if line[0] == "mean")
    assert mean[1:4] == ["90.0", "±", "7.1"]


def test_leaking_figures_are_marked_and_never_beside_honest_ones() -> None:
    leaking = results(protocol="released: it leaks")
    for table in (tables.run_table, lambda found: tables.seeds_table({0: found})):
        assert "RELEASED:" in text(table(leaking))[0]
        assert "RELEASED:" not in text(table(results()))[0]
    with pytest.raises(InputError, match=r"different protocols \(honest, released\)"):
        tables.seeds_table({0: results(), 1: leaking})


def test_summary_figures() -> None:
    summary = results().summary()
    assert summary["ACC"] == 85
    assert summary["AF"] == 20
    assert summary["pooled"] == 92.5
    assert summary["backward_transfer"] == -20
    assert summary["task_identification"] == 95


def test_predictions_and_evaluations() -> None:
    prediction = Prediction("cat", 0.9, (Score("cat", 0.9), Score("dog", 0.1)), (1.0,), 2)
    assert ["a.jpg", "cat", "0.90", "dog", "0.10"] in text(tables.prediction_table(["a.jpg"], [prediction], top=2))
    evaluation = Evaluation(75.0, 80.0, 90.0, 4, 2.0, (TaskScore(1, ("cat", "dog"), 4, 75.0),), {"cat": 100.0})
    lines = text(tables.evaluation_table(evaluation))
    assert ["1", "cat,", "dog", "4", "75.0"] in lines
    assert lines[-1] == ["all", "mean", "over", "tasks", "80.0", "4", "75.0"]
