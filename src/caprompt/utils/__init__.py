"""General helpers: files, devices, random streams, optimizers, CUDA graphs, throttling."""

from __future__ import annotations
