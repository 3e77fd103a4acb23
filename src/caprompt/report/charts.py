"""Charts as inline SVG, laid out for a narrow screen and scaled up.

Series differ in color, marker and dash.
Colors come from the style sheet (classes `c0` to `c5`), so that a chart follows the theme.
Each chart states its values in its `aria-label`, for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from caprompt.metrics import ReliabilityBin, compute_interval

__all__ = [
    "NUM_COLORS",
    "Series",
    "color_cell",
    "draw_bar_chart",
    "draw_legend",
    "draw_line_chart",
    "draw_reliability_diagram",
]

NUM_COLORS = 6  # classes c0 .. c5
WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 54, 46, 14, 44  # margins
LIGHT = ((247, 251, 255), (158, 202, 225), (33, 113, 181), (8, 48, 107))  # white to deep blue
DARK = ((26, 35, 45), (31, 111, 184))
DASHES = ("", "6 4", "2 3", "9 3 2 3", "12 4", "4 2")
MARKERS = (  # centered on the origin, about 9 wide
    '<circle r="4.2"/>',
    '<rect x="-3.8" y="-3.8" width="7.6" height="7.6"/>',
    '<path d="M0-5 4.8 3.8H-4.8Z"/>',
    '<path d="M0-5.4 5.4 0 0 5.4-5.4 0Z"/>',
    '<path d="M0 5 4.8-3.8H-4.8Z"/>',
    '<path d="M-1.6-5h3.2v3.4H5v3.2H1.6V5h-3.2V1.6H-5v-3.2h3.4Z"/>',
)


@dataclass(frozen=True)
class Series:
    """The values of a line or a set of bars, and their range over seeds if there are several."""

    name: str
    values: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def draw_line_chart(series: Sequence[Series], title: str, x_label: str, y_label: str) -> Markup:
    """Draw percentages over 1, 2, 3, ..., with the last value of each line written beside it."""
    points = max(len(each.values) for each in series)
    lowest = min(min([*each.values, *each.low]) for each in series)
    bottom = min(80, max(0, math.floor((lowest - 5) / 20) * 20))
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(position: int) -> float:
        return LEFT + (plot_width * position / (points - 1) if points > 1 else plot_width / 2)

    def y(value: float) -> float:
        return TOP + plot_height * (100 - value) / (100 - bottom)

    parts = [_draw_axes(bottom, y, [(x(i), str(i + 1)) for i in _choose_ticks(points)], x_label, y_label)]
    for index, each in enumerate(series):
        if each.low:
            edge = [(x(i), y(v)) for i, v in enumerate(each.high)] + [(x(i), y(v)) for i, v in reversed(list(enumerate(each.low)))]
            parts.append(f'<polygon class="band c{index % NUM_COLORS}" points="{_format_points(edge)}"/>')
        line = [(x(i), y(value)) for i, value in enumerate(each.values)]
        parts.append(f'<polyline class="line c{index % NUM_COLORS}"{_format_dash(index)} points="{_format_points(line)}"/>')
        parts += [_draw_marker(index, *point) for point in line]
    ends = _separate_labels([y(each.values[-1]) for each in series])
    parts += [
        f'<text class="end" x="{x(len(each.values) - 1) + 9:.1f}" y="{end + 4.5:.1f}">{each.values[-1]:.1f}</text>'
        for each, end in zip(series, ends, strict=True)
    ]
    return _make_svg(title, series, parts)


def draw_bar_chart(labels: Sequence[str], series: Sequence[Series], title: str) -> Markup:
    """Draw horizontal bars, a group per label, with their values; negative ones extend left."""
    thickness = 18 if len(series) == 1 else max(8, 22 - 3 * len(series))
    group = thickness * len(series) + 10
    left, right = 64, 66
    values = [value for each in series for value in each.values]
    low, high = min(0.0, *values), max(5.0, *values)
    scale = (WIDTH - left - right) / (high - low)
    zero = left - low * scale
    height = group * len(labels) + 16
    parts = [f'<line class="axis" x1="{zero:.1f}" y1="4" x2="{zero:.1f}" y2="{height - 10}"/>']
    for row, label in enumerate(labels):
        top = 8 + row * group
        middle = top + thickness * len(series) / 2 + 4.5
        parts.append(f'<text class="tick" x="{left - 10}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for index, each in enumerate(series):
            value, at = each.values[row], top + index * thickness
            start, length = min(zero, zero + value * scale), max(abs(value) * scale, 1)
            beside = max(zero, zero + value * scale) + 6
            if len(series) > 1:
                parts.append(_draw_marker(index, beside + 4, at + thickness / 2 - 1))
                beside += 14
            parts.append(
                f'<rect class="bar c{index % NUM_COLORS}" x="{start:.1f}" y="{at}" width="{length:.1f}" height="{thickness - 2}"/>'
                f'<text class="end" x="{beside:.1f}" y="{at + thickness / 2 + 3.5:.1f}">{value:.1f}</text>'
            )
    return _make_svg(title, series, parts, height)


def draw_reliability_diagram(bins: Sequence[ReliabilityBin], title: str) -> Markup:
    """Draw accuracy over score: a marker with its 95 % interval and a bar for every bin, and the diagonal where both are equal."""

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / 100

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (100 - value) / 100

    parts = [_draw_axes(0, y, [(x(value), str(value)) for value in range(0, 101, 20)], "score (%)", "accuracy (%)")]
    parts.append(f'<line class="diagonal" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(100):.1f}" y2="{y(100):.1f}"/>')
    values = []
    for each in bins:
        if each.mean_score is None or each.accuracy is None:
            continue
        left, width, height = x(each.low) + 1, x(each.high) - x(each.low) - 2, y(0) - y(each.accuracy)
        low, high = compute_interval(round(each.accuracy * each.images / 100), each.images)
        at = x(each.mean_score)
        parts += [
            f'<rect class="band c0" x="{left:.1f}" y="{y(each.accuracy):.1f}" width="{width:.1f}" height="{height:.1f}"/>',
            f'<line class="line c0" x1="{at:.1f}" y1="{y(low):.1f}" x2="{at:.1f}" y2="{y(high):.1f}"/>',
            _draw_marker(0, at, y(each.accuracy)),
        ]
        values.append(f"score {each.mean_score:.1f}, accuracy {each.accuracy:.1f}, {each.images} images")
    return _make_labeled_svg(f"{title}. {'; '.join(values)}", parts, HEIGHT)


def draw_legend(series: Sequence[Series]) -> Markup:
    """Draw the names of the series with their line and marker, as a list to place below a chart."""
    entries = []
    for index, each in enumerate(series):
        line = f'<line class="line c{index % NUM_COLORS}"{_format_dash(index)} x1="1" y1="8" x2="35" y2="8"/>'
        sample = f'<svg viewBox="0 0 36 16" width="36" height="16" aria-hidden="true">{line}{_draw_marker(index, 18, 8)}</svg>'
        entries.append(f"<li>{sample} {escape(each.name)}</li>")
    return Markup(f'<ul class="legend">{"".join(entries)}</ul>')


def color_cell(value: float, full: float = 100.0) -> str:
    """Return the CSS variables of a heat-map cell: background, bluer for higher values, and ink.

    >>> color_cell(0)
    '--cell:light-dark(#f7fbff,#1a232d);--ink:light-dark(#000,#fff)'
    """
    share = min(max(value / full, 0.0), 1.0)
    light, dark = _interpolate(LIGHT, share), _interpolate(DARK, share)
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in light]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    ink = "#000" if luminance > 0.179 else "#fff"  # at 0.179 black and white have the same contrast
    return f"--cell:light-dark(#{bytes(light).hex()},#{bytes(dark).hex()});--ink:light-dark({ink},#fff)"


def _interpolate(stops: Sequence[tuple[int, int, int]], share: float) -> list[int]:
    """Interpolate linearly between color stops, with `share` from 0 (the first) to 1 (the last)."""
    position = share * (len(stops) - 1)
    index = min(int(position), len(stops) - 2)
    return [round(a + (b - a) * (position - index)) for a, b in zip(stops[index], stops[index + 1], strict=True)]


def _draw_axes(bottom: int, y: Callable[[float], float], ticks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> str:
    parts = []
    step = 5 if bottom >= 80 else 20
    for value in range(bottom, 101, step):
        at = y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4.5:.1f}" text-anchor="end">{value}</text>')
    parts += [
        f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">{text}</text>' for at, text in ticks
    ]
    parts.append(f'<text class="label" x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(
        f'<text class="label" transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _make_svg(title: str, series: Sequence[Series], parts: Sequence[str], height: int = HEIGHT) -> Markup:
    values = "; ".join(f"{each.name}: {', '.join(f'{value:.1f}' for value in each.values)}" for each in series)
    return _make_labeled_svg(f"{title}. {values}", parts, height)


def _make_labeled_svg(label: str, parts: Sequence[str], height: int) -> Markup:
    opening = f'<svg class="figure" role="img" viewBox="0 0 {WIDTH} {height}" aria-label="{escape(label)}">'
    return Markup(opening + "".join(parts) + "</svg>")


def _draw_marker(index: int, x: float, y: float) -> str:
    shape = MARKERS[index % len(MARKERS)]
    return f'<g class="mark c{index % NUM_COLORS}" transform="translate({x:.1f} {y:.1f})">{shape}</g>'


def _format_dash(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _format_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _choose_ticks(points: int) -> list[int]:
    """Return the positions that get a tick label: about ten, counted back from the last.

    >>> _choose_ticks(5), _choose_ticks(20)
    ([0, 1, 2, 3, 4], [1, 3, 5, 7, 9, 11, 13, 15, 17, 19])
    """
    return list(range(points - 1, -1, -math.ceil(points / 10)))[::-1]


def _separate_labels(heights: Sequence[float], spacing: float = 14.0) -> list[float]:
    """Move labels down where two would overlap, and up where that leaves the chart, in order.

    >>> _separate_labels([10.0, 12.0, 100.0])
    [10.0, 24.0, 100.0]
    """
    placed = dict.fromkeys(range(len(heights)), 0.0)
    order = sorted(placed, key=lambda i: heights[i])
    lowest = HEIGHT - BOTTOM - spacing * (len(heights) - 1)
    previous = -math.inf
    for rank, i in enumerate(order):
        placed[i] = previous = max(min(heights[i], lowest + rank * spacing), previous + spacing)
    return list(placed.values())
