"""The figure of an explanation: the image, its heat map, and beside them scores, nearest class means and task weights."""

from __future__ import annotations

import io
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from caprompt.classifier.explanation import Explanation
from caprompt.errors import InputError
from caprompt.utils import files
from caprompt.utils.text import escape_controls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "check_figure_path", "write_figure"]

SUFFIXES = (".png", ".svg", ".pdf")
COLOR_MAP = "RdBu_r"
FOR, AGAINST, NEUTRAL, MUTED = "#b2182b", "#2166ac", "#9aa0a6", "0.35"  # near the ends of the color map, and grays
SIZE = (13.85, 5.3)  # inches
HEAT_PIXELS = 600  # at least, along a side of the heat map
MAX_NAME, MAX_SHORT_NAME = 26, 13  # characters of a class name, and of one beside the color bar
MAX_NUMBERS = 10  # tasks whose weights are written as numbers


def check_figure_path(path: Path) -> None:
    """Raise if a figure cannot be written there."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"'{path}' is not a figure that can be written; let its name end in {', '.join(SUFFIXES[:-1])} or .pdf")
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the path of the figure to write")


def write_figure(explanation: Explanation, path: Path) -> None:
    """Draw an explanation and write it as PNG, SVG or PDF, the same bytes for the same explanation."""
    import matplotlib

    check_figure_path(path)
    kind = path.suffix.lower()[1:]
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "caprompt"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # drawn as a box
        draw_figure(explanation).savefig(content, format=kind, metadata=dates.get(kind))
    files.write_bytes(path, content.getvalue())


def draw_figure(explanation: Explanation) -> Figure:
    """Draw an explanation: two large panels, and three small ones beside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=150)

    def add_axes(left: float, bottom: float, width: float, height: float) -> Axes:
        """Return a panel at this place, in inches."""
        return figure.add_axes((left / SIZE[0], bottom / SIZE[1], width / SIZE[0], height / SIZE[1]))

    _draw_image(add_axes(0.2, 0.75, 4.2, 4.2), explanation)
    _draw_heat(add_axes(4.65, 0.75, 4.2, 4.2), add_axes(5.55, 0.5, 2.4, 0.12), explanation)
    _draw_scores(add_axes(10.95, 3.75, 2.7, 1.2), explanation)
    _draw_means(add_axes(10.95, 2.05, 2.7, 1.2), explanation)
    _draw_task_weights(add_axes(10.95, 0.75, 2.7, 0.8), explanation)
    return figure


# -- large panels ---------------------------------------------------------------------------------------------------------


def _draw_image(axes: Axes, explanation: Explanation) -> None:
    axes.imshow(explanation.image, interpolation="bilinear")
    axes.set_title(f"predicted: {format_name(explanation.predicted.label)}", loc="left", fontweight="bold")
    axes.set_xlabel("the part of the image that the network sees", fontsize="small", color=MUTED)
    axes.set(xticks=[], yticks=[])


def _draw_heat(axes: Axes, bar_axes: Axes, explanation: Explanation) -> None:
    """Draw the heat map over the image, and its color bar with the class that each end speaks for."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    limit = float(np.abs(explanation.heat).max()) or 1.0
    mappable = ScalarMappable(Normalize(-limit, limit), COLOR_MAP)
    axes.imshow(blend(explanation, mappable), interpolation="nearest")
    axes.set_title(f"why not {format_name(explanation.against.label)}?", loc="left", fontweight="bold")
    axes.set(xticks=[], yticks=[])
    bar = axes.figure.colorbar(mappable, cax=bar_axes, orientation="horizontal")
    bar.set_ticks([-limit, 0, limit], labels=[f"-{limit:.2g}", "0", f"+{limit:.2g}"])
    bar.outline.set_visible(False)
    bar_axes.tick_params(length=0, labelsize="small")
    caption = f"fall of the margin ({explanation.margin:+.2f}) without a patch; fit {explanation.fit:.2f}"
    bar_axes.set_xlabel(caption, fontsize="small", color=MUTED)
    ends = (-0.04, explanation.against, "right", AGAINST), (1.04, explanation.predicted, "left", FOR)
    for x, score, align, color in ends:
        name = format_name(score.label, MAX_SHORT_NAME)
        bar_axes.text(x, 0.5, name, transform=bar_axes.transAxes, ha=align, va="center", fontsize="small", color=color)


def blend(explanation: Explanation, mappable: Any) -> NDArray[np.float64]:
    """Return the image in gray, tinted in the color of each patch, the stronger the hotter: (side, side, 3) in 0..1."""
    grid = len(explanation.heat)
    side = grid * -(-HEAT_PIXELS // grid)  # a multiple, so that all patches are of the same size
    rows, columns = (np.arange(side) * length // side for length in explanation.image.shape[:2])
    gray = explanation.image[np.ix_(rows, columns)].mean(axis=2, keepdims=True) / 255  # (side, side, 1)
    heat = explanation.heat.repeat(side // grid, axis=0).repeat(side // grid, axis=1)
    strength = 0.75 * (np.abs(heat) / mappable.norm.vmax)[..., None] ** 0.7
    blended: NDArray[np.float64] = (1 - strength) * (0.35 + 0.65 * gray) + strength * mappable.to_rgba(heat)[..., :3]
    return blended


# -- small panels ---------------------------------------------------------------------------------------------------------


def _draw_scores(axes: Axes, explanation: Explanation) -> None:
    shown = list(explanation.top)
    if explanation.against not in shown:
        shown.append(explanation.against)
    _draw_bars(axes, "score", [(score.label, score.score) for score in shown], explanation, low=0.0)


def _draw_means(axes: Axes, explanation: Explanation) -> None:
    if explanation.no_means is not None:
        _draw_note(axes, "nearest class means", explanation.no_means)
        return
    pairs = [(each.label, each.cosine) for each in explanation.nearest]
    _draw_bars(axes, "nearest class means, by cosine", pairs, explanation, low=min(0.0, *(cosine for _, cosine in pairs)))


def _draw_bars(axes: Axes, title: str, pairs: list[tuple[Any, float]], explanation: Explanation, low: float) -> None:
    """Draw a bar per class, in the color of the predicted class or of the other one."""
    colors = {explanation.predicted.label: FOR, explanation.against.label: AGAINST}
    values = [value for _, value in pairs]
    places = range(len(pairs))
    axes.barh(places, values, height=0.66, color=[colors.get(label, NEUTRAL) for label, _ in pairs])
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            f"{value:.2f}", (max(value, 0.0), place), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set(xlim=(low, 1.12), ylim=(max(5, len(pairs)) - 0.5, -0.5), xticks=[])
    axes.set_yticks(list(places), [format_name(label) for label, _ in pairs], fontsize="small")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")


def _draw_note(axes: Axes, title: str, note: str) -> None:
    axes.text(0, 0.9, textwrap.fill(f"left out: {note}", 46), transform=axes.transAxes, va="top", fontsize="small", color=MUTED)
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.set_axis_off()


def _draw_task_weights(axes: Axes, explanation: Explanation) -> None:
    rows = np.array(explanation.task_weights)  # (passes, T)
    count = rows.shape[1]
    axes.imshow(rows, cmap="Greens", vmin=0, vmax=1, aspect="auto")
    if count <= MAX_NUMBERS:
        for (row, column), weight in np.ndenumerate(rows):
            axes.text(
                column, row, f"{weight:.2f}", ha="center", va="center", fontsize="small", color="white" if weight > 0.6 else "0.2"
            )
    names = [f"after pass {number + 1}" for number in range(len(rows))] if explanation.has_cycles else ["prediction"]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    step = -(-count // MAX_NUMBERS)
    axes.set_xticks(range(0, count, step), [str(task + 1) for task in range(0, count, step)], fontsize="small")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("task", fontsize="small", color=MUTED)
    axes.set_title("task weights", loc="left", fontsize="medium", fontweight="bold")


def format_name(label: Any, most: int = MAX_NAME) -> str:
    r"""Return a class name for a figure: short, on one line, and without formulas.

    >>> print(format_name("a $ign"), format_name("x" * 40))
    a \$ign xxxxxxxxxxxxxxxxxxxxxxxxx…
    """
    name = escape_controls(str(label))
    return (name if len(name) <= most else f"{name[: most - 1]}…").replace("$", r"\$")
