"""What happens while a model learns, as events, and who is told: progress bar, metrics log, TensorBoard."""

from __future__ import annotations
