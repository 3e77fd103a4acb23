"""Labelled images: where they come from, how they are split into tasks, and how they reach the network.

A picture goes: `sources` (folder, CSV, arrays) -> `Samples` -> `verified` -> `streams` (tasks) -> `loader` (batches),
and every loader reads through an `ImageCache`, which decodes each file once. Only `loader` imports torch.
"""

from __future__ import annotations

from caprompt.data.datasets.registry import Dataset, load_dataset
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source

__all__ = ["Dataset", "Samples", "load_dataset", "read_source"]
