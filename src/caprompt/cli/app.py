"""The command line: parse, call the library, print.

Heavy imports sit inside the commands, so that `caprompt --help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from caprompt import __version__
from caprompt.cli.commands import audit, evaluate, learn, listings, predict, report, reproduce, results, run
from caprompt.cli.console import err
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
    suppress_keyboard_interrupt=False,  # `main` answers Ctrl-C itself
)
COMMANDS = (
    run.run,
    learn.learn,
    predict.predict,
    evaluate.evaluate,
    audit.audit,
    report.report,
    reproduce.reproduce,
    results.results,
    listings.methods,
    listings.backbones,
    listings.datasets,
)
for command in COMMANDS:
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one sentence and status 2, a failure 1, Ctrl-C 130."""
    sys.exit(_status(sys.argv[1:] if arguments is None else arguments))


def _status(arguments: Sequence[str]) -> int:
    # Pictures that are too large are refused in a sentence of our own.
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()), InputError.exit_code)
    except CapromptError as error:
        return _complain(str(error), error.exit_code)
    except OSError as error:
        return _complain(f"'{error.filename}' cannot be used: {error.strerror}", InputError.exit_code)
    except KeyboardInterrupt:
        return _complain("Stopped.", StoppedError.exit_code)
    return 0


def _complain(sentence: str, status: int) -> int:
    err.print(f"caprompt: {sentence}", soft_wrap=True)
    return status
