"""The `caprompt` command: its app, error messages and exit codes.

Heavy imports are inside the commands, so that `caprompt --help` is fast.
"""

from __future__ import annotations

import pkgutil
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from cyclopts import App, CycloptsError, Parameter

from caprompt import __version__
from caprompt.cli import commands
from caprompt.cli.console import print_error
from caprompt.errors import CapromptError, InputError, StoppedError

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
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()), InputError.exit_code)
    except CapromptError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        subject = f"'{error.filename}' cannot be used: " if error.filename else ""
        return _fail(f"{subject}{error.strerror or error}", InputError.exit_code)
    except KeyboardInterrupt:
        return _fail("Stopped.", StoppedError.exit_code)
    return 0


def _fail(message: str, status: int) -> int:
    print_error(message)
    return status
