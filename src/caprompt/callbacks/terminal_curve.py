"""Accuracy curve in the terminal, printed after each task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from caprompt.callbacks.events import Event, TaskEvaluated
from caprompt.metrics import forgetting, incremental_accuracies

__all__ = ["TerminalCurve", "draw_curve"]

HEIGHT = 9  # lines of the plot; 8 steps, so that each is a round percentage
STEPS = (0.5, 1, 2.5, 5, 12.5)  # percent per line


class TerminalCurve:
    """A callback that prints the curve after every evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, event: Event) -> None:
        """Print the curve if the event is an evaluation."""
        if not isinstance(event, TaskEvaluated):
            return
        curve = incremental_accuracies(event.matrix)
        self.console.print(f"after task {len(curve)}: ACC {curve[-1]:.1f}, AF {forgetting(event.matrix):.1f}", style="bold")
        self.console.print(draw_curve(curve, width=self.console.width - 10), style="cyan", soft_wrap=True)


def draw_curve(values: Sequence[float], width: int = 60) -> str:
    """Return a plot of percentages over the number of tasks, on an axis that ends at 100.

    >>> print(draw_curve([100.0, 90.0, 80.0], width=12))
     100.0 ┤  ●
      97.5 ┤
      95.0 ┤
      92.5 ┤
      90.0 ┤      ●
      87.5 ┤
      85.0 ┤
      82.5 ┤
      80.0 ┤          ●
           └────────────
              1   2   3   tasks learned
    """
    step = next((step for step in STEPS if min(values) >= 100 - step * (HEIGHT - 0.5)), STEPS[-1])
    gap = max(1, min(4, width // len(values)))
    heights = [min(HEIGHT - 1, math.floor((100 - value) / step + 0.5)) for value in values]
    lines = []
    for row in range(HEIGHT):
        points = "".join(("●" if height == row else " ").rjust(gap - gap // 4) + " " * (gap // 4) for height in heights)
        lines.append(f"{100 - step * row:6.1f} ┤{points}".rstrip())
    lines.append("       └" + "─" * (gap * len(values)))
    every = math.ceil(4 / gap)  # close points do not all have room for a label
    labels = "".join(str(task).rjust(gap * every) for task in range(every, len(values) + 1, every))
    lines.append(f"       {labels}   tasks learned")
    return "\n".join(lines)
