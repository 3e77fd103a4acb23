"""Models for use elsewhere: exported formats, model cards and the Hugging Face hub."""

from __future__ import annotations
