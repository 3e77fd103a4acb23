"""Figures of reproductions: plain values in, an SVG or PNG file out. Series differ in color and marker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caprompt.experiments.plots import COLORS, MARKERS
from caprompt.metrics import MeanStd
from caprompt.reproduce.tables import PUBLISHED, Entry, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Plot", "Series", "plot_dots", "plot_histograms", "plot_lines", "plot_scatter", "save_plot"]

Draw = Callable[[Sequence["Axes"]], None]  # draws into the panels
Plot = tuple[int, Draw]  # number of panels side by side, and the function that draws into them
Series = Sequence[tuple[float, MeanStd]]  # x, and mean and standard deviation of y


def save_plot(plot: Plot, stem: Path, suffixes: Sequence[str] = (".svg", ".png")) -> list[Path]:
    """Write a plot in these formats, the same bytes for the same values; return the paths."""
    import matplotlib
    from matplotlib.figure import Figure

    panels, draw = plot
    figure = Figure(figsize=(1.0 + 5.0 * panels, 4.4), dpi=160, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    draw(list(axes))
    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in suffixes]
    with matplotlib.rc_context({"svg.hashsalt": "caprompt", "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def select_style(number: int) -> tuple[str, str]:
    """Return color and marker of a series."""
    return COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]


def _add_legend(axes: Axes) -> None:
    """Add a legend below the axes, where it hides nothing."""
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def plot_lines(panels: Mapping[str, Mapping[str, Series]], x: str, y: str) -> Plot:
    """Plot one panel per title, with a line and its error bars for every series."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, series) in zip(axes, panels.items(), strict=True):
            for number, (name, points) in enumerate(series.items()):
                color, marker = select_style(number)
                spread = [value.std or 0.0 for _, value in points]
                means = [value.mean for _, value in points]
                each.errorbar([at for at, _ in points], means, spread, color=color, marker=marker, label=name, capsize=2, lw=1.4)
            each.set(title=title, xlabel=x, ylabel=y)
            if all(float(at).is_integer() for points in series.values() for at, _ in points):
                each.xaxis.set_major_locator(MaxNLocator(integer=True))
            _add_legend(each)

    return len(panels), draw


def plot_scatter(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], x: str, y: str) -> Plot:
    """Plot one panel per title, with points in their own style for every group."""

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, groups) in zip(axes, panels.items(), strict=True):
            for number, (name, points) in enumerate(groups.items()):
                color, marker = select_style(number)
                each.plot(*zip(*points, strict=True), color=color, marker=marker, linestyle="none", label=name, markersize=6)
            each.set(title=title, xlabel=x, ylabel=y)
            _add_legend(each)

    return len(panels), draw


def plot_histograms(panels: Mapping[str, Mapping[str, Sequence[int]]], x: str) -> Plot:
    """Plot one panel per title, with the share of images by margin from -1 to 1 for every group."""

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, groups) in zip(axes, panels.items(), strict=True):
            for number, (name, counts) in enumerate(groups.items()):
                color, marker = select_style(number)
                width, total = 2 / len(counts), max(1, sum(counts))
                centers = [-1 + (index + 0.5) * width for index in range(len(counts))]
                shares = [100 * count / total for count in counts]
                each.plot(centers, shares, color=color, marker=marker, markersize=3, lw=1.2, label=name)
            each.axvline(0, color="black", lw=0.8)
            each.set(title=title, xlabel=x, ylabel="images (%)", yscale="symlog", ylim=(0, 130))
            _add_legend(each)

    return len(panels), draw


def plot_dots(table: ResultTable, metric: str = "ACC") -> Plot | None:
    """Plot our and the published values of each row, one panel per dataset with any of ours; None if there is none."""
    datasets = [
        column.dataset
        for index, column in enumerate(table.columns)
        if column.metric == metric
        and any(line.source != PUBLISHED and isinstance(line.entries[index], MeanStd) for line in table.lines)
    ]
    indices = [index for index, column in enumerate(table.columns) if column.metric == metric and column.dataset in datasets]
    drawn = [line for line in table.lines if any(isinstance(line.entries[index], MeanStd) for index in indices)]
    labels = list(dict.fromkeys(" ".join(line.labels) for line in drawn))

    def draw(axes: Sequence[Axes]) -> None:
        for each, index in zip(axes, indices, strict=True):
            for number, group in enumerate(dict.fromkeys((line.source, line.protocol) for line in drawn)):
                own = [line for line in drawn if (line.source, line.protocol) == group]
                _draw_group(each, [(line.entries[index], labels.index(" ".join(line.labels))) for line in own], group, number)
            each.set(title=table.columns[index].dataset, xlabel=f"{metric} (%)", yticks=range(len(labels)), yticklabels=labels)
            each.invert_yaxis()
            _add_legend(each)

    return (len(datasets), draw) if datasets else None


def _draw_group(axes: Axes, points: Sequence[tuple[Entry, int]], group: tuple[str, str], number: int) -> None:
    """Draw the values of one source and protocol; published ones are hollow."""
    known = [(entry.mean, row, entry.std or 0.0) for entry, row in points if isinstance(entry, MeanStd)]
    if known:
        color, marker = select_style(number)
        x, at, spread = zip(*known, strict=True)
        filled = "none" if group[0] == PUBLISHED else color
        axes.errorbar(x, at, xerr=spread, color=color, marker=marker, mfc=filled, ls="none", capsize=2, label=", ".join(group))
