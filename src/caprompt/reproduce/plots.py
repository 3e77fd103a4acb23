"""Pictures of reproductions: plain numbers in, an SVG or PNG file out. Told apart by colour and by marker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caprompt.experiments.plots import COLOURS, MARKERS
from caprompt.metrics import MeanStd
from caprompt.reproduce.tables import PUBLISHED, Entry, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Picture", "Series", "dots", "histograms", "lines", "save", "scatter"]

#: Draws into as many panels as it asked for.
Draw = Callable[[Sequence["Axes"]], None]
Picture = tuple[int, Draw]  # how many panels side by side, and what is drawn into them
Series = Sequence[tuple[float, MeanStd]]  # x, and a mean with its spread


def save(picture: Picture, stem: Path) -> list[Path]:
    """Write a picture as SVG and PNG, the same bytes for the same numbers."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    panels, draw = picture
    canvas = Canvas(figsize=(1.0 + 5.0 * panels, 4.4), dpi=160, layout="constrained")
    axes = canvas.subplots(1, panels, squeeze=False)[0]
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    draw(list(axes))
    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".svg", ".png")]
    with matplotlib.rc_context({"svg.hashsalt": "caprompt", "svg.fonttype": "none"}):
        canvas.savefig(paths[0], metadata={"Date": None})
        canvas.savefig(paths[1])
    return paths


def style(number: int) -> tuple[str, str]:
    """Colour and marker of one of many."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def explain(axes: Axes) -> None:
    """The legend, below the picture, where it hides nothing."""
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def lines(panels: Mapping[str, Mapping[str, Series]], x: str, y: str) -> Picture:
    """A panel each, with a line and its error bars for every name."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, series) in zip(axes, panels.items(), strict=True):
            for number, (name, points) in enumerate(series.items()):
                colour, marker = style(number)
                spread = [figure.spread or 0.0 for _, figure in points]
                means = [figure.mean for _, figure in points]
                each.errorbar([at for at, _ in points], means, spread, color=colour, marker=marker, label=name, capsize=2, lw=1.4)
            each.set(title=title, xlabel=x, ylabel=y)
            if all(float(at).is_integer() for points in series.values() for at, _ in points):
                each.xaxis.set_major_locator(MaxNLocator(integer=True))
            explain(each)

    return len(panels), draw


def scatter(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], x: str, y: str) -> Picture:
    """A panel each, with points of its own look for every name."""

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, groups) in zip(axes, panels.items(), strict=True):
            for number, (name, points) in enumerate(groups.items()):
                colour, marker = style(number)
                each.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle="none", label=name, markersize=6)
            each.set(title=title, xlabel=x, ylabel=y)
            explain(each)

    return len(panels), draw


def histograms(panels: Mapping[str, Mapping[str, Sequence[int]]], x: str) -> Picture:
    """A panel each, with the share of images by margin from -1 to 1 for every name."""

    def draw(axes: Sequence[Axes]) -> None:
        for each, (title, groups) in zip(axes, panels.items(), strict=True):
            for number, (name, counts) in enumerate(groups.items()):
                colour, marker = style(number)
                width, total = 2 / len(counts), max(1, sum(counts))
                middles = [-1 + (place + 0.5) * width for place in range(len(counts))]
                shares = [100 * count / total for count in counts]
                each.plot(middles, shares, color=colour, marker=marker, markersize=3, lw=1.2, label=name)
            each.axvline(0, color="black", lw=0.8)
            each.set(title=title, xlabel=x, ylabel="images (%)", yscale="symlog", ylim=(0, 130))
            explain(each)

    return len(panels), draw


def dots(sheet: ResultTable, metric: str = "ACC") -> Picture | None:
    """Ours and the published figures of each row, a panel per data set of which there are any of ours; None if there are none."""
    datasets = [
        column.dataset
        for place, column in enumerate(sheet.columns)
        if column.metric == metric
        and any(line.source != PUBLISHED and isinstance(line.entries[place], MeanStd) for line in sheet.lines)
    ]
    places = [place for place, column in enumerate(sheet.columns) if column.metric == metric and column.dataset in datasets]
    drawn = [line for line in sheet.lines if any(isinstance(line.entries[place], MeanStd) for place in places)]
    labels = list(dict.fromkeys(" ".join(line.labels) for line in drawn))

    def draw(axes: Sequence[Axes]) -> None:
        for each, place in zip(axes, places, strict=True):
            for number, group in enumerate(dict.fromkeys((line.source, line.protocol) for line in drawn)):
                own = [line for line in drawn if (line.source, line.protocol) == group]
                _one_look(each, [(line.entries[place], labels.index(" ".join(line.labels))) for line in own], group, number)
            each.set(title=sheet.columns[place].dataset, xlabel=f"{metric} (%)", yticks=range(len(labels)), yticklabels=labels)
            each.invert_yaxis()
            explain(each)

    return (len(datasets), draw) if datasets else None


def _one_look(axes: Axes, points: Sequence[tuple[Entry, int]], group: tuple[str, str], number: int) -> None:
    """The figures of one source and protocol; published ones are hollow."""
    known = [(entry.mean, row, entry.spread or 0.0) for entry, row in points if isinstance(entry, MeanStd)]
    if known:
        colour, marker = style(number)
        x, at, spread = zip(*known, strict=True)
        filled = "none" if group[0] == PUBLISHED else colour
        axes.errorbar(x, at, xerr=spread, color=colour, marker=marker, mfc=filled, ls="none", capsize=2, label=", ".join(group))
