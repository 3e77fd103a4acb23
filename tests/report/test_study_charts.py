from __future__ import annotations

import re

import pytest

from caprompt.experiments.search_space import Choices, Range
from caprompt.report.charts import HEIGHT, WIDTH
from caprompt.report.study_charts import Point, draw_effect, draw_history


def find_marks(chart: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'class="mark c\d" transform="translate\(([\d.-]+) ([\d.-]+)\)"', chart)]


def test_history_has_a_mark_for_each_trial_and_a_rising_line() -> None:
    values = (80.0, 82.5, 81.0, 84.0)
    chart = str(draw_history([Point(number, value) for number, value in enumerate(values)], "ACC"))
    marks = find_marks(chart)
    assert [x for x, _ in marks] == sorted(x for x, _ in marks)
    heights = [y for _, y in marks]
    assert heights[3] < heights[1] < heights[2] < heights[0]  # y grows downwards
    (points,) = re.findall(r'<polyline class="line c1" points="([^"]+)"', chart)
    line = [float(point.split(",")[1]) for point in points.split()]
    assert line == sorted(line, reverse=True)
    assert "0: 80.00; 1: 82.50; 2: 81.00; 3: 84.00" in chart


def test_log_scale_puts_the_geometric_mean_in_the_middle() -> None:
    points = [Point(value, 50.0 + index) for index, value in enumerate((0.001, 0.01, 0.1))]
    (low, _), (middle, _), (high, _) = find_marks(str(draw_effect("rate", Range(0.001, 0.1, log=True), points)))
    assert middle - low == pytest.approx(high - middle, abs=0.2)


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (Range(1, 8, integer=True), (1, 8)),
        (Range(500, 10_000, integer=True, log=True), (500, 10_000)),
        (Choices((True, False)), (True, False)),
        (Choices(("covariance", "low-rank", "variance", "multi-centroid", "mean")), ("covariance", "mean")),
    ],
)
def test_marks_and_labels_stay_within_the_chart(domain: Range | Choices, values: tuple[object, object]) -> None:
    chart = str(draw_effect("<option>", domain, [Point(values[0], 0.0, "default"), Point(values[1], 100.0, "best")]))
    for x, y in find_marks(chart):
        assert 0 < x < WIDTH
        assert 0 < y < HEIGHT
    for height in re.findall(r'<text class="tick" x="[\d.]+" y="([\d.]+)"', chart):
        assert 0 < float(height) < HEIGHT
    assert "&lt;option&gt;" in chart


def test_equal_values_are_drawn() -> None:
    chart = str(draw_history([Point(0, 90.0, "best")], "ACC"))
    assert len(find_marks(chart)) == 1
    assert ">90.0</text>" in chart
