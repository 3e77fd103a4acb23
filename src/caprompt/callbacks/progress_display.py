"""Choice of the progress bar of a call: in a notebook, in a terminal, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from caprompt.callbacks.events import Callback, ignore_event

__all__ = ["is_notebook", "show_progress"]


def is_notebook() -> bool:
    """Return whether this process runs the cells of a notebook: it is an IPython kernel, as in Jupyter, VS Code or Colab."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


@contextmanager
def show_progress(show: bool | None) -> Iterator[Callback]:
    """Provide a callback that shows progress: always or never, or with None in a notebook only, since scripts stay silent."""
    if not (is_notebook() if show is None else show):
        yield ignore_event
        return
    from rich.console import Console

    from caprompt.callbacks.progress_bar import NotebookBar, ProgressBar

    with NotebookBar() if is_notebook() else ProgressBar(Console(stderr=True)) as bar:
        yield bar
