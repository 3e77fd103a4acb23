"""Plots of runs. Each takes the values that the tables show and writes a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from caprompt.metrics import Matrix, incremental_accuracies

__all__ = ["COLORS", "MARKERS", "plot_accuracy_curve"]

COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
)  # Okabe and Ito: distinguishable with color blindness
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # one more than there are colors, so that pairs do not repeat


def plot_accuracy_curve(runs: Mapping[str, Sequence[Matrix]], path: Path, title: str = "") -> None:
    """Draw the accuracy after each task, a line per name: the mean over its runs (seeds), with their range shaded."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 4.0), dpi=160, layout="constrained")
    axes = figure.subplots()
    for number, (name, matrices) in enumerate(runs.items()):
        curves = [incremental_accuracies(matrix) for matrix in matrices]
        columns = list(zip(*curves, strict=True))
        tasks = range(1, len(columns) + 1)
        mean = [sum(column) / len(column) for column in columns]
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        axes.plot(tasks, mean, color=color, marker=marker, label=name)
        axes.annotate(f"{mean[-1]:.1f}", (len(mean), mean[-1]), xytext=(6, 0), textcoords="offset points", va="center", color=color)
        if len(curves) > 1:
            axes.fill_between(tasks, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="mean accuracy over tasks seen (%)", ylim=(0, 103), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
