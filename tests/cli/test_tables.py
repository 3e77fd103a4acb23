from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from caprompt import InputError
from caprompt.cli import tables
from caprompt.experiments.run_folder import RunResult, TaskResult
from caprompt.methods import MethodOutput
from caprompt.outputs import Evaluation, Prediction, Score, make_evaluation


def render(table: object) -> list[list[str]]:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(table)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def make_results(acc: float = 85.0, **changes: str) -> RunResult:
    rows = [TaskResult((90.0,), (10,), 100.0, 2.0, 1.0), TaskResult((2 * acc - 100, 100.0), (10, 30), 95.0, 2.0, 1.0)]
    return RunResult(Path("x"), [["a", "b"], ["c"]], rows, **changes)


def test_run_table_has_a_row_per_task() -> None:
    lines = render(tables.make_run_table(make_results()))
    assert ["1", "a,", "b", "90.0", "0.0", "90.0", "70.0"] in lines
    assert ["2", "c", "85.0", "20.0", "100.0", "100.0"] in lines


def test_run_table_of_a_joint_run_has_the_accuracy_of_each_task() -> None:
    joint = RunResult(Path("x"), [["a", "b"], ["c"]], [TaskResult((70.0, 100.0), (10, 30), 95.0, 2.0, 1.0)], joint=True)
    lines = render(tables.make_run_table(joint))
    assert ["1", "a,", "b", "70.0"] in lines
    assert ["2", "c", "100.0"] in lines


def test_seeds_table_adds_mean_and_std_for_two_or_more() -> None:
    assert not any("mean" in line for line in render(tables.make_seeds_table({0: make_results()})))
    lines = render(tables.make_seeds_table({0: make_results(), 1: make_results(acc=95.0)}))
    mean = next(line for line in lines if line[0] == "mean")
    assert mean[1:4] == ["90.0", "±", "7.1"]


def test_leaking_results_are_marked_and_never_mixed_with_honest_ones() -> None:
    leaking = make_results(protocol="released: it leaks")
    for table in (tables.make_run_table, lambda results: tables.make_seeds_table({0: results})):
        assert any("protocol=released)" in line for line in render(table(leaking)))
        assert not any("protocol=released)" in line for line in render(table(make_results())))
    with pytest.raises(InputError, match=r"different protocols \(honest, released\)"):
        tables.make_seeds_table({0: make_results(), 1: leaking})


def test_summary_metrics() -> None:
    summary = make_results().summary()
    assert summary["ACC"] == 85
    assert summary["AF"] == 20
    assert summary["pooled"] == 92.5
    assert summary["backward_transfer"] == -20
    assert summary["task_identification"] == 95


def test_prediction_table() -> None:
    prediction = Prediction("cat", 0.9, (Score("cat", 0.9), Score("dog", 0.1)), (1.0,), 2)
    assert ["a.jpg", "cat", "0.90", "dog", "0.10"] in render(tables.make_prediction_table(["a.jpg"], [prediction], top=2))


def make_test(tasks: list[list[str]], targets: list[int], predicted: list[int]) -> Evaluation:
    classes = [name for names in tasks for name in names]
    logits = 5.0 * F.one_hot(torch.tensor(predicted), len(classes))
    output = MethodOutput(logits, torch.ones(len(targets), len(tasks)) / len(tasks), torch.full((len(targets),), 2))
    return make_evaluation(output, torch.tensor(targets), classes, tasks)


def test_evaluation_table_has_intervals_and_numbers_of_images() -> None:
    lines = render(tables.make_evaluation_table(make_test([["cat", "dog"], ["cow"]], [0, 0, 1, 1, 2], [0, 0, 1, 0, 2])))
    assert ["1", "cat,", "dog", "4", "75.0", "30.1", "to", "95.4"] in lines
    assert ["2", "cow", "1", "100.0", "20.7", "to", "100.0"] in lines
    assert lines[-1] == ["all", "mean", "over", "tasks", "87.5", "5", "80.0", "37.6", "to", "96.4"]


def test_evaluation_table_cuts_long_lists_of_classes() -> None:
    names = [f"c{number}" for number in range(300)]
    text = " ".join(word for line in render(tables.make_evaluation_table(make_test([names], [0], [1]))) for word in line)
    assert "c0, c1, " in text
    assert "and 288 more" in text
    assert "c299" not in text


def test_class_table_has_a_row_per_class() -> None:
    evaluation = make_test([["cat", "dog"], ["cow"]], [0, 0, 1, 1, 2], [0, 0, 1, 0, 2])
    lines = render(tables.make_class_table(evaluation, ["dog", "cow"]))
    assert lines[-2:] == [["dog", "2", "50.0", "9.5", "to", "90.5"], ["cow", "1", "100.0", "20.7", "to", "100.0"]]
