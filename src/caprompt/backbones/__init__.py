"""Vision transformers: the network, the files that its weights come from, and the names they are known by."""

from __future__ import annotations
