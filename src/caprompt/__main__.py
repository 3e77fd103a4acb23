"""`python -m caprompt` and the `caprompt` command; Ctrl-C is handled even during imports."""

from __future__ import annotations

import atexit
import gc
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    # Threads of PyTorch that wait for each other sleep instead of spinning: on a busy machine, those that spin take the cores from
    # those they wait for. It has to be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # At its end, Python looks for garbage among all objects of PyTorch, several times; what is frozen it leaves out.
    atexit.register(gc.freeze)
    try:
        from caprompt.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
