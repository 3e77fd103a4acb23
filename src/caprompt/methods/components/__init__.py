"""Parts that several methods share: prompts, heads, adapters, statistics."""

from __future__ import annotations
