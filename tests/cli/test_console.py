from __future__ import annotations

import pytest

from caprompt.cli.console import err, out, print_error, print_skipped, print_warnings, to_flags


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
