from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from caprompt.cli.tables import make_result_table
from caprompt.metrics import MeanStd
from caprompt.reproduce.tables import Column, Line, ResultTable, to_csv, to_latex, to_markdown

TABLE = ResultTable(
    "A & B",
    ("method",),
    (Column("digits", "ACC"), Column("CUB200", "ACC", 1)),
    (
        Line(("one_|",), "published", "leaks", ("", MeanStd(70.25, None, 3))),
        Line(("one_|",), "ours", "honest", (MeanStd(50.123, 1.5, 2), "data not at hand")),
    ),
    ("a note",),
)


def test_markdown_has_a_line_for_each_source() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "| method | source | protocol | digits ACC | CUB200 ACC |",
        "| --- | --- | --- | --: | --: |",
        "| one_/ | published | leaks | - | 70.2 |",
        "| one_/ | ours | honest | 50.12 ± 1.50 | data not at hand |",
    ]


def test_csv_is_unrounded_and_gives_the_reason_for_missing_values() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert [(row["figures"], row["data set"], row["mean"], row["seeds"], row["why none"]) for row in rows] == [
        ("published", "CUB200", "70.25", "3", ""),
        ("ours", "digits", "50.123", "2", ""),
        ("ours", "CUB200", "", "", "data not at hand"),
    ]
    assert rows[1]["spread"] == "1.5"


def test_latex_is_escaped() -> None:
    text = to_latex(TABLE)
    assert r"one\_| & ours & honest & 50.12 $\pm$ 1.50 & data not at hand \\" in text
    assert r"\caption{A \& B. a note.}" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2


def make_label_table(label: str) -> ResultTable:
    return ResultTable("t", ("class",), TABLE.columns[:1], (Line((label,), "ours", "honest", (MeanStd(-1.5),)),))


@pytest.mark.parametrize(
    ("label", "latex"),
    [
        ("{a}", r"\{a\}"),
        ("$x$", r"\$x\$"),
        ("2^3", r"2\textasciicircum{}3"),
        ("~tilde", r"\textasciitilde{}tilde"),
        ("back\\slash{}", r"back\textbackslash{}slash\{\}"),
        (r"\&_#%", r"\textbackslash{}\&\_\#\%"),
        ("a <= b", r"a $\le$ b"),
    ],
)
def test_characters_with_a_meaning_in_latex_are_escaped(label: str, latex: str) -> None:
    assert f"{latex} & ours & honest & -1.50" in to_latex(make_label_table(label))


@pytest.mark.parametrize("label", ["=1+1", "@cmd", "+x", "-x"])
def test_csv_holds_no_formula(label: str) -> None:
    (row,) = csv.DictReader(io.StringIO(to_csv(make_label_table(label))))
    assert row["class"] == f"'{label}"
    assert row["mean"] == "-1.5"


def test_terminal_shows_everything() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(make_result_table(TABLE))
    shown = console.export_text()
    for words in ("A & B", "published", "50.12 ± 1.50", "data not at hand"):
        assert words in shown


def test_a_line_with_too_few_entries_is_refused() -> None:
    short = ResultTable("t", ("m",), TABLE.columns, (Line(("x",), "ours", "honest", (MeanStd(1.0),)),))
    with pytest.raises(ValueError):
        to_markdown(short)
