"""The `caprompt` command: its app, error messages and exit codes.

Heavy imports are inside the commands, so that `caprompt --help` is fast.
"""

from __future__ import annotations

import errno
import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError

from caprompt import __version__
from caprompt.cli import commands
from caprompt.cli.console import print_error, print_warnings
from caprompt.cli.processes import is_first_process
from caprompt.errors import CapromptError, CapromptWarning, InputError, StoppedError, did_you_mean

__all__ = ["app", "main"]

HELP = """Learn new image classes as they come, without forgetting and without keeping images.

See it work, offline, in minutes:

    caprompt run

Teach it your own photos, a folder per class, whenever there are new ones:

    caprompt learn pets photos/week1
    caprompt learn pets photos/week2
    caprompt predict pets cat.jpg
    caprompt evaluate pets photos/test
"""

MAIN_COMMANDS = ("learn", "predict", "evaluate", "run")

app = App(
    name="caprompt",
    help=HELP,
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # `main` handles Ctrl-C itself
)
for module in pkgutil.iter_modules(commands.__path__):  # a new command is a new file there
    implementation = import_module(f"{commands.__name__}.{module.name}")
    for name in implementation.__all__:
        app.command(getattr(implementation, name))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: status 2 and one sentence for bad input, 1 for a failure, 130 for Ctrl-C."""
    sys.exit(_run_command(sys.argv[1:] if arguments is None else arguments))


def _run_command(arguments: Sequence[str]) -> int:
    # Images that are too large are rejected with our own message.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    _accept_any_text()
    try:
        with _print_own_warnings():
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        is_unknown = isinstance(error, UnknownCommandError)
        message = _describe_unknown_command(arguments) if is_unknown else " ".join(str(error).split())
        return _fail(message, InputError.exit_code) if is_first_process() else InputError.exit_code
    except CapromptError as error:
        return _fail(str(error), error.exit_code)
    except BrokenPipeError:  # as in `caprompt predict ... | head`
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # Python flushes it at exit
        return CapromptError.exit_code
    except OSError as error:
        return _fail(_describe_os_error(error), InputError.exit_code)
    except KeyboardInterrupt:
        return _fail("Stopped.", StoppedError.exit_code)
    return 0


def _fail(message: str, status: int) -> int:
    print_error(message)
    return status


def _accept_any_text() -> None:
    """Print what the encoding of the terminal lacks as an escape, such as \\u732b, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _print_own_warnings() -> Iterator[None]:
    """Print the warnings of this library as one line each; others as Python does."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", CapromptWarning)
        show = warnings.showwarning

        def show_warning(message: Warning | str, category: type[Warning], *details: Any, **options: Any) -> None:
            if issubclass(category, CapromptWarning):
                print_warnings([str(message)])
            else:
                show(message, category, *details, **options)

        warnings.showwarning = show_warning
        yield


def _describe_unknown_command(arguments: Sequence[str]) -> str:
    """Return a sentence with the commands that most users need; `caprompt --help` lists all."""
    word, known = arguments[0], [name for name in app if not name.startswith("-")]
    return (
        f"unknown command '{word}'{did_you_mean(word, known)}; the most used are {', '.join(MAIN_COMMANDS)}, "
        "and caprompt --help lists all"
    )


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"'{error.filename}' cannot be written" if error.filename else "the output cannot be written"
        return f"{where}: {reason}; free some space and repeat the command"
    return f"'{error.filename}' cannot be used: {reason}" if error.filename else reason
