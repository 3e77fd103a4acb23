"""Charts of a study as inline SVG: accuracy over trials, and over the values of each option.

They have the look of `charts`, with axes that fit the trials: those of a study often differ by less than a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from caprompt.experiments.search_space import Choices, Domain, Range
from caprompt.report.charts import HEIGHT, MARKERS, WIDTH

__all__ = ["KINDS", "Point", "draw_effect", "draw_history", "draw_kinds"]

LEFT, RIGHT, TOP, BOTTOM = 60, 20, 14, 62  # margins; labels of choices may need two lines
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)  # of the axis, in points
KINDS = ("trial", "best", "default")  # in the order of colors and markers


@dataclass(frozen=True)
class Point:
    """A trial in a chart: its position on the horizontal axis (a number or a choice), its accuracy, and what it is."""

    x: object
    accuracy: float
    kind: str = "trial"


def draw_history(points: Sequence[Point], title: str) -> Markup:
    """Draw the accuracy of every trial, and a line along the best one so far; `x` is the number of the trial."""
    numbers = [float(str(point.x)) for point in points]
    place = _make_scale(min(numbers), max(numbers, default=0), LEFT + 8, WIDTH - RIGHT - 8)
    y, axis = _make_vertical_axis([point.accuracy for point in points])
    best, line = -math.inf, []
    for number, point in zip(numbers, points, strict=True):
        line += [(place(number), y(best))] if best > -math.inf else []
        best = max(best, point.accuracy)
        line.append((place(number), y(best)))
    ticks = [(place(number), f"{number:g}") for number in numbers[:: math.ceil(len(numbers) / 10)]]
    stairs = " ".join(f"{x:.1f},{height:.1f}" for x, height in line)
    parts = [axis, _draw_ticks(ticks), _draw_label("trial"), f'<polyline class="line c1" points="{stairs}"/>']
    parts += [_draw_point(point, place(number), y(point.accuracy)) for number, point in zip(numbers, points, strict=True)]
    return _make_svg(title, points, parts)


def draw_effect(name: str, domain: Domain, points: Sequence[Point]) -> Markup:
    """Draw the accuracy of trials over the value of an option."""
    y, axis = _make_vertical_axis([point.accuracy for point in points])
    place, ticks = _make_choice_axis(domain) if isinstance(domain, Choices) else _make_number_axis(domain)
    parts = [axis, _draw_ticks(ticks), _draw_label(name + (", log scale" if isinstance(domain, Range) and domain.log else ""))]
    parts += [_draw_point(point, place(point.x), y(point.accuracy)) for point in points]
    return _make_svg(f"Accuracy on validation images over {name}", points, parts)


def draw_kinds() -> Markup:
    """Draw the markers of the charts with their meaning, as a list to place below one."""
    size = 'viewBox="-8 -8 16 16" width="16" height="16"'
    entries = [
        f'<li><svg {size} aria-hidden="true"><g class="mark c{index}">{MARKERS[index]}</g></svg> {kind}</li>'
        for index, kind in enumerate(KINDS)
    ]
    return Markup(f'<ul class="legend">{"".join(entries)}</ul>')


def _make_vertical_axis(values: Sequence[float]) -> tuple[Callable[[float], float], str]:
    """Return the height of a value, and the grid lines with their labels."""
    low, high, step = _choose_ticks(min(values), max(values))
    y = _make_scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}"/>')
        label = f"{value:.1f}" if step < 1 else f"{value:.0f}"
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y(value) + 4.5:.1f}" text-anchor="end">{label}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="label" transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">ACC (%)</text>')
    return y, "".join(parts)


def _choose_ticks(lowest: float, highest: float) -> tuple[float, float, float]:
    """Return the ends of an axis with these values and the distance of its ticks, of which there are seven at most.

    >>> _choose_ticks(90.2, 93.9), _choose_ticks(50.0, 50.0), _choose_ticks(0.0, 100.0)
    ((90, 94, 1), (50.0, 50.1, 0.1), (0, 100, 20))
    """
    for step in STEPS:
        low, high = math.floor(round(lowest / step, 6)) * step, math.ceil(round(highest / step, 6)) * step
        if round((high - low) / step) <= 6:
            break
    return round(low, 1), round(high if high > low else low + step, 1), step


def _make_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the linear map of low to start and high to end; a single value comes to the middle."""
    return lambda value: start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _make_number_axis(domain: Range) -> tuple[Callable[[object], float], list[tuple[float, str]]]:
    """Return the position of a value on the axis of a range, and ticks at its ends and its middle."""
    warp = math.log if domain.log else float
    scale = _make_scale(warp(domain.low), warp(domain.high), LEFT + 8, WIDTH - RIGHT - 8)

    def place(value: object) -> float:
        return scale(warp(float(str(value))))

    middle = math.sqrt(domain.low * domain.high) if domain.log else (domain.low + domain.high) / 2
    middle = round(middle) if domain.integer else middle
    return place, [
        (place(value), f"{value:.3g}" if value < 1000 else f"{value:.0f}") for value in (domain.low, middle, domain.high)
    ]


def _make_choice_axis(domain: Choices) -> tuple[Callable[[object], float], list[tuple[float, str]]]:
    """Return the position of a choice, and a tick at each."""
    labels = [str(domain.encode(value)) for value in domain.values]
    width = (WIDTH - LEFT - RIGHT) / len(labels)
    positions = {label: LEFT + width * (index + 0.5) for index, label in enumerate(labels)}
    return lambda value: positions[str(domain.encode(value))], [(at, label) for label, at in positions.items()]


def _draw_ticks(ticks: Sequence[tuple[float, str]]) -> str:
    """Draw labels of the horizontal axis, in two lines where one is too short for them."""
    crowded = sum(len(text) + 2 for _, text in ticks) * 7 > WIDTH - LEFT - RIGHT
    return "".join(
        f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + (35 if crowded and index % 2 else 19)}" text-anchor="middle">'
        f"{escape(text)}</text>"
        for index, (at, text) in enumerate(ticks)
    )


def _draw_label(text: str) -> str:
    return f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(text)}</text>'


def _draw_point(point: Point, x: float, y: float) -> str:
    index = KINDS.index(point.kind)
    return f'<g class="mark c{index}" transform="translate({x:.1f} {y:.1f})">{MARKERS[index]}</g>'


def _make_svg(title: str, points: Sequence[Point], parts: Sequence[str]) -> Markup:
    values = "; ".join(f"{point.x}: {point.accuracy:.2f}{'' if point.kind == 'trial' else f' ({point.kind})'}" for point in points)
    label = escape(f"{title}. {values}")
    return Markup(f'<svg class="figure" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-label="{label}">{"".join(parts)}</svg>')
