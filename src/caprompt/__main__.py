"""`python -m caprompt` and the `caprompt` command; Ctrl-C is handled even during imports."""

from __future__ import annotations

import atexit
import gc
import os
import sys

__all__ = ["main"]

REPORTING_LEAKS = ("onnx", "triton")  # modules built with nanobind, which prints the objects of its own that nobody frees


def main() -> None:
    """Run the command line."""
    # Threads of PyTorch that wait for each other sleep instead of spinning: on a busy machine, those that spin take the cores from
    # those they wait for. It has to be set before PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    atexit.register(_freeze_objects)
    try:
        from caprompt.utils.memory import pause_collection

        with pause_collection():
            from caprompt.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


def _freeze_objects() -> None:
    """Make the end fast: Python looks for garbage among all objects of PyTorch then, several times, but not among frozen ones.

    Those that imports have frozen are looked at again where a module would call them leaked.
    """
    if any(name in sys.modules for name in REPORTING_LEAKS):
        gc.unfreeze()
    else:
        gc.freeze()


if __name__ == "__main__":
    main()
