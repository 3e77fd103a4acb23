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
FOR, AGAINST, NEUTRAL = "#b2182b", "#2166ac", "#9aa0a6"  # the ends of the color map, and gray
MAX_NAME = 26  # characters of a class name
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
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(13.6, 5.2), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    image_panel, heat_panel, details = figure.subfigures(1, 3, width_ratios=(1.0, 1.22, 1.05))
    _draw_image(image_panel.subplots(), explanation)
    _draw_heat(heat_panel, explanation)
    rows = 2.2, 2.2, 0.9 + 0.32 * len(explanation.task_weights)
    scores, means, weights = details.subplots(3, 1, height_ratios=rows)
    _draw_scores(scores, explanation)
    _draw_means(means, explanation)
    _draw_task_weights(weights, explanation)
    return figure


# -- large panels ---------------------------------------------------------------------------------------------------------


def _draw_image(axes: Axes, explanation: Explanation) -> None:
    axes.imshow(explanation.image, interpolation="bilinear")
    axes.set_title(f"predicted: {format_name(explanation.predicted.label)}", loc="left", fontweight="bold")
    axes.set_xlabel("the part of the image that the network sees", color="0.35")
    axes.set(xticks=[], yticks=[])


def _draw_heat(panel: Any, explanation: Explanation) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    limit = float(np.abs(explanation.heat).max()) or 1.0
    mappable = ScalarMappable(Normalize(-limit, limit), COLOR_MAP)
    axes = panel.subplots()
    axes.imshow(blend(explanation, mappable), interpolation="nearest")
    winner, other = format_name(explanation.predicted.label), format_name(explanation.against.label)
    axes.set_title(f"why not {other}?", loc="left", fontweight="bold")
    lost = f"fall of the margin without a patch (margin {explanation.margin:+.2f})"
    bar = panel.colorbar(mappable, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label(lost, color="0.35")
    bar.ax.set_title(f"{winner}", fontsize="small", color=FOR)
    bar.ax.set_xlabel(f"{other}", fontsize="small", color=AGAINST)
    bar.outline.set_visible(False)
    axes.set_xlabel(f"{explanation.copies} copies without some patches; fit {explanation.fit:.2f}", color="0.35")
    axes.set(xticks=[], yticks=[])


def blend(explanation: Explanation, mappable: Any) -> NDArray[np.float64]:
    """Return the image in gray, tinted in the color of each patch, the stronger the hotter: (H, W, 3) in 0..1."""
    height, width = explanation.image.shape[:2]
    rows, columns = (np.arange(side) * len(explanation.heat) // side for side in (height, width))
    heat = explanation.heat[np.ix_(rows, columns)]
    gray = explanation.image.mean(axis=2, keepdims=True).repeat(3, axis=2) / 255
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
    axes.text(0, 0.9, textwrap.fill(f"left out: {note}", 46), transform=axes.transAxes, va="top", fontsize="small", color="0.35")
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
    axes.set_xlabel("task", fontsize="small", color="0.35")
    axes.set_title("task weights", loc="left", fontsize="medium", fontweight="bold")


def format_name(label: Any) -> str:
    r"""Return a class name for a figure: short, on one line, and without formulas.

    >>> print(format_name("a $ign"), format_name("x" * 40))
    a \$ign xxxxxxxxxxxxxxxxxxxxxxxxx…
    """
    name = escape_controls(str(label))
    return (name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…").replace("$", r"\$")
