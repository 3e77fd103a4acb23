from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from markupsafe import Markup

from caprompt.metrics import compute_reliability
from caprompt.report.charts import (
    HEIGHT,
    WIDTH,
    Series,
    color_cell,
    draw_bar_chart,
    draw_legend,
    draw_line_chart,
    draw_reliability_diagram,
)

SVG = "{http://www.w3.org/2000/svg}"


def parse(figure: Markup) -> ET.Element:
    return ET.fromstring(str(figure).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def read_points(figure: ET.Element, number: int) -> list[tuple[float, float]]:
    line = figure.findall(f"{SVG}polyline")[number]
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_lines_follow_the_values() -> None:
    figure = parse(draw_line_chart([Series("one", [90, 50, 70]), Series("other", [10, 20])], "ACC", "tasks", "percent"))
    (x1, high), (x2, low), (x3, middle) = read_points(figure, 0)
    assert x1 < x2 < x3
    assert high < middle < low
    assert [x for x, _ in read_points(figure, 1)] == [x1, x2]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for number in (0, 1) for x, y in read_points(figure, number))
    assert figure.attrib["aria-label"] == "ACC. one: 90.0, 50.0, 70.0; other: 10.0, 20.0"


def test_y_axis_starts_below_the_lowest_value() -> None:
    def scale(values: list[float]) -> list[str]:
        ticks = parse(draw_line_chart([Series("a", values)], "", "", "")).findall(f"{SVG}text[@class='tick']")
        return [tick.text or "" for tick in ticks if tick.attrib["text-anchor"] == "end"]

    assert scale([97.0, 96.0]) == ["80", "85", "90", "95", "100"]
    assert scale([97.0, 3.0]) == ["0", "20", "40", "60", "80", "100"]


def test_series_differ_in_dash_and_marker() -> None:
    series = [Series(name, [50.0, 40.0]) for name in "abcdef"]
    figure = parse(draw_line_chart(series, "", "", ""))
    assert len({line.attrib.get("stroke-dasharray", "") for line in figure.findall(f"{SVG}polyline")}) == 6
    marks = {ET.tostring(mark[0]) for mark in figure.findall(f"{SVG}g")}
    assert len(marks) == 6


def test_final_values_do_not_overlap() -> None:
    figure = parse(draw_line_chart([Series(name, [50.0, 2.0]) for name in "abcdef"], "", "", ""))
    heights = sorted(float(text.attrib["y"]) for text in figure.findall(f"{SVG}text[@class='end']"))
    assert all(below - above >= 13.9 for above, below in pairwise(heights))
    assert heights[-1] < HEIGHT


def test_range_over_seeds_is_shaded() -> None:
    figure = parse(draw_line_chart([Series("a", [50.0, 60.0], low=[40.0, 55.0], high=[60.0, 65.0])], "", "", ""))
    assert len(figure.findall(f"{SVG}polygon")) == 1


def test_bars_are_proportional_to_values_and_may_be_negative() -> None:
    figure = parse(draw_bar_chart(["task 1", "task 2"], [Series("lost", [10.0, -5.0])], "AF"))
    longer, shorter = figure.findall(f"{SVG}rect")
    assert float(longer.attrib["width"]) == pytest.approx(2 * float(shorter.attrib["width"]), abs=0.2)
    assert float(shorter.attrib["x"]) < float(longer.attrib["x"])
    assert [text.text for text in figure.findall(f"{SVG}text[@class='end']")] == ["10.0", "-5.0"]


def test_reliability_diagram_has_a_bar_and_an_interval_for_each_bin_with_images() -> None:
    bins = compute_reliability([0.1, 0.5, 0.95, 0.97], [False, True, True, False])
    figure = parse(draw_reliability_diagram(bins, "Accuracy by score"))
    bars = figure.findall(f"{SVG}rect")
    assert [float(bar.attrib["height"]) for bar in bars] == pytest.approx([0.0, 232.0, 116.0], abs=0.1)
    assert len(figure.findall(f"{SVG}line[@class='line c0']")) == len(figure.findall(f"{SVG}g")) == 3
    (diagonal,) = figure.findall(f"{SVG}line[@class='diagonal']")
    assert float(diagonal.attrib["y1"]) > float(diagonal.attrib["y2"])
    assert figure.attrib["aria-label"].startswith("Accuracy by score. score 10.0, accuracy 0.0, 1 images; score 50.0")


def test_names_are_escaped() -> None:
    malicious = '<script>alert("x")</script>'
    for figure in (
        draw_line_chart([Series(malicious, [1.0])], malicious, malicious, malicious),
        draw_bar_chart([malicious], [Series(malicious, [1.0])], malicious),
        draw_legend([Series(malicious, [1.0])]),
    ):
        assert "<script" not in figure
        ET.fromstring(figure)


@pytest.mark.parametrize("value", range(0, 101, 5))
def test_ink_has_enough_contrast_on_every_cell(value: int) -> None:
    match = re.fullmatch(r"--cell:light-dark\(#(\w{6}),#(\w{6})\);--ink:light-dark\(#(\w{3}),#fff\)", color_cell(value))
    assert match is not None
    light, dark, ink = match.groups()
    assert contrast(light, ink * 2) >= 4.5
    assert contrast(dark, "ffffff") >= 4.5


def contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
