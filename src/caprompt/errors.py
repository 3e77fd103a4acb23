"""Exceptions raised on purpose. Each message is one sentence: what is wrong, with what, and what to do.

`InputError` and its subclasses are for input that the caller can correct (exit status 2); any other `CapromptError`
is a failure (exit status 1). Messages name arguments (`resume=True`); the CLI prints them as flags (`--resume`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CapromptError",
    "CapromptWarning",
    "DataError",
    "InputError",
    "ModelFolderError",
    "OptionError",
    "ProcessLostError",
    "StoppedError",
    "StorageError",
    "UnknownNameError",
    "UnknownOptionError",
    "did_you_mean",
    "first_line",
]


MAX_REASON = 500  # characters of another library's message within ours; some quote a whole file


class CapromptError(Exception):
    """Base class of every error that this library raises on purpose."""

    exit_code = 1


class CapromptWarning(UserWarning):
    """Input that can be used, but may not be what was meant; the CLI prints it as one line."""


class InputError(CapromptError, ValueError):
    """Invalid input: an argument, a file or a folder that cannot be used."""

    exit_code = 2


class DataError(InputError):
    """A folder, CSV file or image that cannot be read as labeled images."""


class StorageError(DataError):
    """An image that its storage does not give: it may be whole, and readable later."""


class OptionError(InputError):
    """An unknown option, or an invalid value of one, whose name is `option` where it is known."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class ModelFolderError(InputError):
    """A model or run folder that is missing, damaged, modified or from a newer version."""


class UnknownNameError(InputError):
    """A name that is not in a registry; the message lists the known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], also: str = "") -> None:
        names = sorted(known)
        super().__init__(f"unknown {kind} '{name}'{did_you_mean(name, names)}; there are: {', '.join(names)}{also}")


class UnknownOptionError(OptionError):
    """An option that a method or command does not have; the message lists those that it has."""

    def __init__(self, name: str, owner: str, known: Iterable[str]) -> None:
        names = sorted(known)
        super().__init__(f"unknown option '{name}' for {owner}{did_you_mean(name, names)}; there are: {', '.join(names)}", name)


class ProcessLostError(CapromptError):
    """Another of the processes that work on a call has ended or does not answer."""


class StoppedError(CapromptError):
    """An interrupt (Ctrl-C), with a sentence on the state that it left."""

    exit_code = 130


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelled name, or an empty string.

    >>> did_you_mean("epoch", ["epochs", "alpha"])
    " (did you mean 'epochs'?)"
    >>> did_you_mean("zzz", ["epochs", "alpha"])
    ''
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened if it is long, or the name of its class if it has no message.

    >>> first_line(ValueError("not a number\\nat line 3")), first_line(ValueError())
    ('not a number', 'ValueError')
    >>> len(first_line(ValueError("x" * 10_000)))
    500
    """
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."
