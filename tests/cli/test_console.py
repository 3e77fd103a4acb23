from __future__ import annotations

import json

import pytest
from rich.table import Table

from caprompt.cli.console import (
    SafeConsole,
    err,
    format_json,
    out,
    print_csv,
    print_error,
    print_skipped,
    print_table,
    print_warnings,
    to_flags,
)


def test_names_are_printed_verbatim() -> None:
    with out.capture() as capture:
        out.print("a[red]b :smile: [/x]")
    assert capture.get() == "a[red]b :smile: [/x]\n"


def test_messages_go_to_stderr_with_flags() -> None:
    with err.capture() as capture:
        print_skipped(["'a.png' is broken", "'b.png' too; go on without it with skip_bad=True"])
        print_warnings(["2 test images were trained on"])
        print_error("start it without resume=True")
    assert capture.get().splitlines() == [
        "skipped: 'a.png' is broken",
        "skipped: 'b.png' too; go on without it with --skip-bad",
        "warning: 2 test images were trained on",
        "caprompt: start it without --resume",
    ]


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("not available with protocol='released'", "not available with --protocol released"),
        ("say where it is with backbone=...", "say where it is with --backbone"),
        ("the file 'resume=True' is missing", "the file 'resume=True' is missing"),
        ("the file 'runs/resume=True' is missing", "the file 'runs/resume=True' is missing"),
        ("trained with protocol=released", "trained with protocol=released"),
        ("no_resume=True", "no_resume=True"),
    ],
)
def test_to_flags(message: str, printed: str) -> None:
    assert to_flags(message) == printed


@pytest.mark.parametrize("console", [out, err], ids=["out", "err"])
def test_control_characters_are_escaped_in_text_and_tables(console: SafeConsole) -> None:
    table = Table("name", title="t\x1b[0m")
    table.add_row("a\x1b[31mb\udce9")
    with console.capture() as capture:
        console.print("a\x1b]0;x\x07b")
        console.print(table)
    text = capture.get()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"a\x1b]0;x\x07b" in text
    assert r"a\x1b[31mb\xe9" in text


def test_messages_are_one_line_whatever_is_in_them() -> None:
    with err.capture() as capture:
        print_error("'a\nwarning: b' is damaged")
        print_skipped(["'c\r\nd'", "ignored 1 file that is not an image: e\nf"])
        print_warnings(["g\x1b[2J"])
    assert capture.get().splitlines() == [
        r"caprompt: 'a\nwarning: b' is damaged",
        r"skipped: 'c\r\nd'",
        r"ignored 1 file that is not an image: e\nf",
        r"warning: g\x1b[2J",
    ]


def test_table_is_as_wide_as_it_needs_to_be_where_stdout_is_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row("x" * 500)
    print_table(table)
    assert "x" * 500 in capsys.readouterr().out


def test_json_is_ascii_and_has_no_lone_surrogates() -> None:
    value = {"caf\udce9": ["a\udcff", ("é", 1.5, None)], "label": "\U0001f600"}
    text = format_json(value)
    assert text.isascii()
    assert json.loads(text) == {r"caf\xe9": [r"a\xff", ["é", 1.5, None]], "label": "\U0001f600"}


def test_csv_quotes_cells_and_neutralizes_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[object]] = [
        ["path", "label"],
        ['a,"b"\n.png', "=1+1"],
        ["b.png", "+x"],
        ["c.png", "-x"],
        ["d.png", "@x"],
        ["e", -1.5],
    ]
    print_csv(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["path,label", '"a,""b""\\n.png",\'=1+1', "b.png,'+x", "c.png,'-x", "d.png,'@x", "e,-1.5"]
