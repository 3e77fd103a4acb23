from __future__ import annotations

import pytest

from caprompt.cli.console import err, out, print_skipped, print_warnings


def test_names_are_printed_as_they_are() -> None:
    with out.capture() as capture:
        out.print("a[red]b :smile: [/x]")
    assert capture.get() == "a[red]b :smile: [/x]\n"


def test_what_was_skipped_goes_to_the_error_console(capsys: pytest.CaptureFixture[str]) -> None:
    with err.capture() as capture:
        print_skipped(["'a.png' is broken", "'b.png' too"])
    assert capture.get() == "skipped: 'a.png' is broken\nskipped: 'b.png' too\n"


def test_warnings_too() -> None:
    with err.capture() as capture:
        print_warnings(["2 test images were trained on"])
    assert capture.get() == "warning: 2 test images were trained on\n"
