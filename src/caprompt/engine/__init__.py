"""Training and inference loops: batches in, updates or predictions out."""

from __future__ import annotations
