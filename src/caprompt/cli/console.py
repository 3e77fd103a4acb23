"""The two consoles: results go to `out`, everything said about them to `err`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from caprompt.protocols import warning

if TYPE_CHECKING:
    from caprompt.classifier import ContinualClassifier

__all__ = ["err", "out", "print_protocol_warning", "print_skipped", "print_warnings"]

# Names of files and classes are printed as they are: square brackets are no markup, colons no emoji.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(stderr=True, markup=False, emoji=False, highlight=False)


def print_skipped(sentences: Sequence[str]) -> None:
    """Say what was left out, a line each."""
    for sentence in sentences:
        err.print(f"skipped: {sentence}", style="yellow", soft_wrap=True)


def print_warnings(sentences: Sequence[str]) -> None:
    """Say what casts doubt on the figures, a line each."""
    for sentence in sentences:
        err.print(f"warning: {sentence}", style="bold yellow", soft_wrap=True)


def print_protocol_warning(model: ContinualClassifier) -> dict[str, str]:
    """Say so on stderr if a model's answers leak; returns the mark that its JSON gets."""
    sentence = warning(model.method.options)
    print_warnings([sentence] if sentence else [])
    return {"protocol": "released"} if sentence else {}
