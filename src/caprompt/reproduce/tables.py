"""Result tables that state the source of every value, as Markdown, CSV and LaTeX.

A line has one source (published or ours) and one protocol, so values from different protocols never share a line.
Where there is no value, the entry says why.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caprompt.metrics import MeanStd
from caprompt.utils.spreadsheets import escape_formula

__all__ = ["OURS", "PUBLISHED", "Column", "Entry", "Line", "ResultTable", "to_csv", "to_latex", "to_markdown"]

OURS, PUBLISHED = "ours", "published"

#: Characters with a meaning in LaTeX, and how to print them; replaced in one pass, so that no replacement is replaced again.
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "±": r"$\pm$",
    "<=": r"$\le$",
    ">=": r"$\ge$",
}
_SPECIAL = re.compile("|".join(re.escape(text) for text in _LATEX))


Entry = MeanStd | str  # a value, or why there is none; "" where none is expected


@dataclass(frozen=True)
class Column:
    """A metric on one dataset."""

    dataset: str
    metric: str
    digits: int = 2


@dataclass(frozen=True)
class Line:
    """One line of a table: its labels, the source of its values, and their protocol."""

    labels: tuple[str, ...]
    source: str
    protocol: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class ResultTable:
    """A table of results."""

    title: str
    heads: tuple[str, ...]  # headings of the labels
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def headings(self) -> list[str]:
        """All headings, from left to right."""
        return [*self.heads, "source", "protocol", *(f"{column.dataset} {column.metric}".strip() for column in self.columns)]

    def rows(self) -> Iterable[list[str]]:
        """Yield the lines as text."""
        for line in self.lines:
            yield [*line.labels, line.source, line.protocol, *self._format_entries(line)]

    def _format_entries(self, line: Line) -> list[str]:
        """Return the entries of a line as text."""
        pairs = zip(line.entries, self.columns, strict=True)
        return [entry.text(column.digits) if isinstance(entry, MeanStd) else entry or "-" for entry, column in pairs]


def to_markdown(table: ResultTable) -> str:
    """Return a pipe table, without its title."""
    words = len(table.heads) + 2
    rule = ["---"] * words + ["--:"] * len(table.columns)
    rows = [table.headings, rule, *table.rows()]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows) + "\n"


def to_csv(table: ResultTable) -> str:
    """Return one unrounded value per line, as machine-readable CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.heads, "figures", "protocol", "data set", "metric", "mean", "spread", "seeds", "why none"])
    for line in table.lines:
        for column, entry in zip(table.columns, line.entries, strict=True):
            known = isinstance(entry, MeanStd)
            values = [entry.mean, entry.std, entry.seeds, ""] if isinstance(entry, MeanStd) else ["", "", "", entry]
            if known or entry:
                row = [*line.labels, line.source, line.protocol, column.dataset, column.metric, *values]
                writer.writerow([escape_formula(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def to_latex(table: ResultTable) -> str:
    """Return a `tabular` with its caption, for booktabs."""
    words = len(table.heads) + 2
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{'l' * words}{'c' * len(table.columns)}}}", r"\toprule"]
    lines += [
        _format_latex_row(table.headings),
        r"\midrule",
        *map(_format_latex_row, table.rows()),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    caption = ". ".join([table.title, *(note.rstrip(".") for note in table.notes)])
    return "\n".join([*lines, rf"\caption{{{_escape_latex(caption)}.}}", r"\end{table}"]) + "\n"


def _format_latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_escape_latex, cells)) + r" \\"


def _escape_latex(text: str) -> str:
    """Return text as LaTeX that prints it.

    >>> print(_escape_latex(r"a_b{c} 5 % $x^2$ ~ C:\\d"))
    a\\_b\\{c\\} 5 \\% \\$x\\textasciicircum{}2\\$ \\textasciitilde{} C:\\textbackslash{}d
    """
    return _SPECIAL.sub(lambda match: _LATEX[match.group()], text)
