"""`python -m caprompt` and the `caprompt` command; Ctrl-C is handled even during imports."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        from caprompt.cli.app import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
