from __future__ import annotations

import io

import pytest
from rich.console import Console

from caprompt.callbacks.events import LearnEnded, TaskEvaluated
from caprompt.callbacks.terminal_curve import TerminalCurve, draw_curve


def test_prints_the_curve_after_evaluations_only() -> None:
    console = Console(file=io.StringIO(), width=60, record=True)
    curve = TerminalCurve(console)
    curve(LearnEnded(4, 1.0))
    assert console.export_text(clear=False) == ""
    curve(TaskEvaluated([[90.0], [80.0, 100.0]]))
    text = console.export_text()
    assert "after task 2: ACC 90.0, AF 10.0" in text
    assert text.count("●") == 2


@pytest.mark.parametrize("values", [[99.0], [100.0, 0.0], [50.0] * 7, [97.0 - task for task in range(40)]])
def test_every_task_is_a_point_within_the_width(values: list[float]) -> None:
    lines = draw_curve(values, width=60).splitlines()
    assert sum(line.count("●") for line in lines) == len(values)
    assert max(map(len, lines[:-1])) <= 68
    assert all("-" not in line for line in lines)  # the axis never falls below zero


def test_lower_values_are_drawn_lower() -> None:
    lines = draw_curve([90.0, 40.0, 70.0]).splitlines()
    row = {column: at for at, line in enumerate(lines) for column, mark in enumerate(line) if mark == "●"}
    first, second, third = (row[column] for column in sorted(row))
    assert first < third < second
