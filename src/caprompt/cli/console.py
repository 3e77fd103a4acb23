"""Console output: results go to stdout (`out`), messages about them to stderr (`err`).

Library messages name arguments (`resume=True`); everything printed to `err` here names the flags instead (`--resume`).
Names of files and classes are printed verbatim, but for what a terminal would act on: control characters are printed as `\\x1b`,
and bytes of a file name that are not UTF-8 as `\\xe9`, in tables and messages, JSON and CSV alike.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caprompt.protocols import make_leak_warning
from caprompt.utils.spreadsheets import escape_formula
from caprompt.utils.text import escape_bytes, escape_controls

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier

__all__ = [
    "SafeConsole",
    "err",
    "format_json",
    "out",
    "print_csv",
    "print_error",
    "print_protocol_warning",
    "print_skipped",
    "print_table",
    "print_warnings",
    "to_flags",
]

UNLIMITED = 100_000  # columns of a table that is not printed to a terminal


class SafeConsole(Console):
    """A console that prints text verbatim and escapes what a terminal would act on; line breaks stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)  # no [red], no :smile:

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text for output; rich calls this for every string, also in tables."""
        return super().render_str("\n".join(map(escape_controls, text.split("\n"))), **options)


out = SafeConsole()
err = SafeConsole(stderr=True)

# Arguments that library messages refer to; each has a flag of the same name. File names are quoted, hence the lookbehind.
NAMES = "again|approximate|backbone|base|cycles|give_task|out|protocol|resume|runtime|scale|skip_bad|unknown|weights|with_sums"
ARGUMENT = re.compile(rf"(?<![\w'/.-])({NAMES})=(True|\.\.\.|'\w+')(?!\w)")


def to_flags(message: str) -> str:
    """Replace the arguments that a library message names by the flags of the command line.

    >>> to_flags("continue it with resume=True, or go on without it with skip_bad=True")
    'continue it with --resume, or go on without it with --skip-bad'
    >>> to_flags("give a weights file with backbone=..., or take scale='tiny'")
    'give a weights file with --backbone, or take --scale tiny'
    >>> to_flags("the option epochs=3 of 'resume=True' stays")
    "the option epochs=3 of 'resume=True' stays"
    """

    def to_flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        flag = f"--{name.replace('_', '-')}"
        return flag if value in ("True", "...") else f"{flag} {value[1:-1]}"

    return ARGUMENT.sub(to_flag, message)


def print_error(message: str) -> None:
    """Print the message of a command that failed."""
    _print_line(f"caprompt: {to_flags(message)}")


def print_skipped(messages: Iterable[str]) -> None:
    """Print a line for each image that was skipped, and for files that were ignored."""
    for message in messages:
        prefix = "" if message.startswith("ignored ") else "skipped: "
        _print_line(f"{prefix}{to_flags(message)}", style="yellow")


def print_warnings(messages: Iterable[str]) -> None:
    """Print a line for each warning about the validity of the results."""
    for message in messages:
        _print_line(f"warning: {to_flags(message)}", style="bold yellow")


def _print_line(message: str, style: str | None = None) -> None:
    """Print a message as one line, whatever the file names in it."""
    err.print(escape_controls(message), style=style, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, or where stdout is not a terminal as wide as it is, so that nothing is cut."""
    (out if out.is_terminal else SafeConsole(file=out.file, width=UNLIMITED)).print(table)


def format_json(value: Any) -> str:
    """Return indented JSON in ASCII that every parser reads, also with file names that are not UTF-8.

    >>> print(format_json({"image": "caf\\udce9.png"}))
    {
      "image": "caf\\\\xe9.png"
    }
    """
    return json.dumps(_escape_strings(value), indent=2)


def _escape_strings(value: Any) -> Any:
    if isinstance(value, str):
        return escape_bytes(value)
    if isinstance(value, dict):
        return {_escape_strings(key): _escape_strings(item) for key, item in value.items()}
    return [_escape_strings(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_csv(rows: Iterable[Sequence[object]]) -> None:
    """Print rows as CSV, with texts that a spreadsheet program takes as texts."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        writer.writerow([escape_formula(escape_controls(cell)) if isinstance(cell, str) else cell for cell in row])


def print_protocol_warning(model: ContinualClassifier) -> dict[str, str]:
    """Print a warning if the predictions of a model leak; return the entry that marks them in JSON output."""
    message = make_leak_warning(model.method.options)
    print_warnings([message] if message else [])
    return {"protocol": "released"} if message else {}
