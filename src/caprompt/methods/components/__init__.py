"""Building blocks shared by several methods: prompts, adapters, heads, statistics, replay."""

from __future__ import annotations
