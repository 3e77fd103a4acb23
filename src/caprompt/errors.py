"""The errors a person meets. Each is one sentence: what is wrong, with what, and what to do.

`InputError` and its children mean that the caller can mend it (exit status 2); any other `CapromptError` is a failure (1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CapromptError",
    "DataError",
    "InputError",
    "ModelFolderError",
    "OptionError",
    "StoppedError",
    "UnknownNameError",
    "did_you_mean",
]


class CapromptError(Exception):
    """Anything this library raises on purpose."""

    exit_code = 1


class InputError(CapromptError, ValueError):
    """Something that was passed in cannot be used."""

    exit_code = 2


class DataError(InputError):
    """A folder, table or image that cannot be read as labelled images."""


class OptionError(InputError):
    """An option that does not exist or has a value it cannot take."""


class ModelFolderError(InputError):
    """A model folder that is missing, damaged, altered or from a newer version."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message lists what is."""

    def __init__(self, kind: str, name: str, known: Iterable[str], also: str = "") -> None:
        names = sorted(known)
        super().__init__(f"unknown {kind} '{name}'{did_you_mean(name, names)}; there are: {', '.join(names)}{also}")


class StoppedError(CapromptError):
    """Ctrl-C, with a sentence on what it left."""

    exit_code = 130


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name, or nothing.

    >>> did_you_mean("epoch", ["epochs", "alpha"])
    " (did you mean 'epochs'?)"
    >>> did_you_mean("zzz", ["epochs", "alpha"])
    ''
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
