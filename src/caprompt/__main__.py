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
    atexit.register(_freeze_objects)
    try:
        _set_up_threads()
        from caprompt.utils.memory import pause_collection

        with pause_collection():
            from caprompt.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


def _set_up_threads() -> None:
    """Set how threads of PyTorch work together, before it is imported, as far as the user has not set it."""
    from caprompt.utils.cores import count_bound_cores, count_cores

    # Threads that wait for each other sleep instead of spinning: on a busy machine, those that spin take the cores from those they
    # wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Of cores that the process is bound to, PyTorch counts those that are worth a thread; it does not know a container's quota.
    cores = count_cores()
    if cores < count_bound_cores():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


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
