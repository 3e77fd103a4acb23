"""Tables that say where every figure comes from: for the terminal, and as Markdown, CSV and LaTeX.

A line has one source (published or ours) and one protocol, so figures that came about under different rules never stand in one
line. Where there is no figure, a word says why.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caprompt.metrics import MeanStd

__all__ = ["Column", "Entry", "Line", "ResultTable", "as_csv", "as_latex", "as_markdown"]

OURS, PUBLISHED = "ours", "published"


Entry = MeanStd | str  # a figure, or why there is none; "" where none is to be expected


@dataclass(frozen=True)
class Column:
    """What stands below one heading: a quantity, on one data set."""

    dataset: str
    metric: str
    digits: int = 2


@dataclass(frozen=True)
class Line:
    """One line: what it is of, whose figures they are, under which protocol."""

    labels: tuple[str, ...]
    source: str
    protocol: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class ResultTable:
    """A table."""

    title: str
    heads: tuple[str, ...]  # what the labels of a line are
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def headings(self) -> list[str]:
        """All of them, from left to right."""
        return [*self.heads, "figures", "protocol", *(f"{column.dataset} {column.metric}".strip() for column in self.columns)]

    def rows(self) -> Iterable[list[str]]:
        """The lines in words."""
        for line in self.lines:
            yield [*line.labels, line.source, line.protocol, *self.texts(line)]

    def texts(self, line: Line) -> list[str]:
        """A line's entries in words."""
        pairs = zip(line.entries, self.columns, strict=True)
        return [entry.text(column.digits) if isinstance(entry, MeanStd) else entry or "-" for entry, column in pairs]


def as_markdown(sheet: ResultTable) -> str:
    """A pipe table, without its title."""
    words = len(sheet.heads) + 2
    rule = ["---"] * words + ["--:"] * len(sheet.columns)
    rows = [sheet.headings, rule, *sheet.rows()]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows) + "\n"


def as_csv(sheet: ResultTable) -> str:
    """One figure a line, unrounded, for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*sheet.heads, "figures", "protocol", "data set", "metric", "mean", "spread", "seeds", "why none"])
    for line in sheet.lines:
        for column, entry in zip(sheet.columns, line.entries, strict=True):
            known = isinstance(entry, MeanStd)
            values = [entry.mean, entry.spread, entry.seeds, ""] if isinstance(entry, MeanStd) else ["", "", "", entry]
            if known or entry:
                writer.writerow([*line.labels, line.source, line.protocol, column.dataset, column.metric, *values])
    return text.getvalue()


def as_latex(sheet: ResultTable) -> str:
    """A `tabular` with its caption, for booktabs."""
    words = len(sheet.heads) + 2
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{'l' * words}{'c' * len(sheet.columns)}}}", r"\toprule"]
    lines += [_latex_row(sheet.headings), r"\midrule", *map(_latex_row, sheet.rows()), r"\bottomrule", r"\end{tabular}"]
    caption = ". ".join([sheet.title, *(note.rstrip(".") for note in sheet.notes)])
    return "\n".join([*lines, rf"\caption{{{_latex(caption)}.}}", r"\end{table}"]) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    for plain, escaped in (("\\", r"\textbackslash "), ("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("#", r"\#"), ("±", r"$\pm$")):
        text = text.replace(plain, escaped)
    return text.replace("<=", r"$\le$").replace(">=", r"$\ge$")
