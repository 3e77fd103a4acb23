"""Console output: results go to stdout (`out`), messages about them to stderr (`err`).

Library messages name arguments (`resume=True`); everything printed to `err` here names the flags instead (`--resume`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from caprompt.protocols import make_leak_warning

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier

__all__ = ["err", "out", "print_error", "print_protocol_warning", "print_skipped", "print_warnings", "to_flags"]

# File and class names are printed verbatim: no markup in square brackets, no emoji between colons.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(stderr=True, markup=False, emoji=False, highlight=False)

# Arguments that library messages refer to; each has a flag of the same name. File names are quoted, hence the lookbehind.
ARGUMENT = re.compile(r"(?<![\w'/.-])(backbone|protocol|resume|scale|skip_bad)=(True|\.\.\.|'\w+')(?!\w)")


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
    err.print(f"caprompt: {to_flags(message)}", soft_wrap=True)


def print_skipped(messages: Iterable[str]) -> None:
    """Print a line for each image that was skipped."""
    for message in messages:
        err.print(f"skipped: {to_flags(message)}", style="yellow", soft_wrap=True)


def print_warnings(messages: Iterable[str]) -> None:
    """Print a line for each warning about the validity of the results."""
    for message in messages:
        err.print(f"warning: {to_flags(message)}", style="bold yellow", soft_wrap=True)


def print_protocol_warning(model: ContinualClassifier) -> dict[str, str]:
    """Print a warning if the predictions of a model leak; return the entry that marks them in JSON output."""
    message = make_leak_warning(model.method.options)
    print_warnings([message] if message else [])
    return {"protocol": "released"} if message else {}
