from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from caprompt.experiments.plots import COLOURS, MARKERS
from caprompt.metrics import MeanStd
from caprompt.reproduce.plots import Picture, dots, histograms, lines, save, scatter, style
from caprompt.reproduce.tables import Column, Line, ResultTable

SHEET = ResultTable(
    "t",
    ("method",),
    (Column("digits", "ACC"), Column("digits", "AF"), Column("CUB200", "ACC")),
    (
        Line(("one",), "published", "leaks", ("", "", MeanStd(80.0))),
        Line(("one",), "ours", "honest", (MeanStd(50.0, 1.0, 2), MeanStd(1.0), "data not at hand")),
        Line(("two",), "ours", "honest", ("failed", "failed", "data not at hand")),
    ),
)
PICTURES = {
    "lines": lines({"a": {"x": [(1, MeanStd(1.0, 0.5, 2)), (2, MeanStd(2.0))]}, "b": {"y": [(1, MeanStd(3.0))]}}, "x", "y"),
    "scatter": scatter({"a": {str(n): [(n, n), (n, 2 * n)] for n in range(10)}}, "x", "y"),
    "histograms": histograms({"a": {"x": [0, 3, 1, 0]}}, "margin"),
    "dots": dots(SHEET),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_written_twice_and_not_empty(name: str, tmp_path: Path) -> None:
    picture = PICTURES[name]
    assert picture is not None
    svg, png = save(picture, tmp_path / "fig-one.two")
    assert (svg.name, png.name) == ("fig-one.two.svg", "fig-one.two.png")
    with Image.open(png) as image:
        assert image.width > 300
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    before = svg.read_bytes()
    assert b"<path" in before
    save(picture, tmp_path / "fig-one.two")
    assert svg.read_bytes() == before


def test_dots_show_what_there_is(tmp_path: Path) -> None:
    picture: Picture | None = PICTURES["dots"]
    assert picture is not None
    assert picture[0] == 1  # one panel: there is nothing of ours on CUB200
    svg = save(picture, tmp_path / "dots")[0].read_text()
    assert "ours, honest" in svg
    assert "CUB200" not in svg
    nothing = ResultTable(SHEET.title, SHEET.heads, SHEET.columns, SHEET.lines[:1])
    assert dots(nothing) is None


def test_colour_and_marker_together_do_not_repeat() -> None:
    assert len({style(number) for number in range(len(COLOURS) * len(MARKERS))}) == len(COLOURS) * len(MARKERS)
