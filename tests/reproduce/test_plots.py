from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from caprompt.experiments.plots import COLORS, MARKERS
from caprompt.metrics import MeanStd
from caprompt.reproduce.plots import Plot, plot_dots, plot_histograms, plot_lines, plot_scatter, save_plot, select_style
from caprompt.reproduce.tables import Column, Line, ResultTable

TABLE = ResultTable(
    "t",
    ("method",),
    (Column("digits", "ACC"), Column("digits", "AF"), Column("CUB200", "ACC")),
    (
        Line(("one",), "published", "leaks", ("", "", MeanStd(80.0))),
        Line(("one",), "ours", "honest", (MeanStd(50.0, 1.0, 2), MeanStd(1.0), "data not at hand")),
        Line(("two",), "ours", "honest", ("failed", "failed", "data not at hand")),
    ),
)
PLOTS = {
    "lines": plot_lines({"a": {"x": [(1, MeanStd(1.0, 0.5, 2)), (2, MeanStd(2.0))]}, "b": {"y": [(1, MeanStd(3.0))]}}, "x", "y"),
    "scatter": plot_scatter({"a": {str(n): [(n, n), (n, 2 * n)] for n in range(10)}}, "x", "y"),
    "histograms": plot_histograms({"a": {"x": [0, 3, 1, 0]}}, "margin"),
    "dots": plot_dots(TABLE),
}


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_written_as_svg_and_png_and_are_deterministic(name: str, tmp_path: Path) -> None:
    plot = PLOTS[name]
    assert plot is not None
    svg, png = save_plot(plot, tmp_path / "fig-one.two")
    assert (svg.name, png.name) == ("fig-one.two.svg", "fig-one.two.png")
    with Image.open(png) as image:
        assert image.width > 300
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    before = svg.read_bytes()
    assert b"<path" in before
    save_plot(plot, tmp_path / "fig-one.two")
    assert svg.read_bytes() == before


def test_dots_show_datasets_with_our_results(tmp_path: Path) -> None:
    plot: Plot | None = PLOTS["dots"]
    assert plot is not None
    assert plot[0] == 1  # one panel: there are no results of ours on CUB200
    svg = save_plot(plot, tmp_path / "dots")[0].read_text()
    assert "ours, honest" in svg
    assert "CUB200" not in svg
    published_only = ResultTable(TABLE.title, TABLE.heads, TABLE.columns, TABLE.lines[:1])
    assert plot_dots(published_only) is None


def test_color_and_marker_together_do_not_repeat() -> None:
    assert len({select_style(number) for number in range(len(COLORS) * len(MARKERS))}) == len(COLORS) * len(MARKERS)
