"""`python -m caprompt` is the command line."""

from __future__ import annotations

from caprompt.cli import main

if __name__ == "__main__":
    main()
