"""The figures that the paper printed, from `published.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from caprompt.metrics import MeanStd
from caprompt.utils.files import read_toml

__all__ = ["leaks", "printed_rows", "published"]


@cache
def printed() -> dict[str, Any]:
    """The whole file."""
    return read_toml(Path(__file__).with_name("published.toml"))


def leaks(method: str) -> bool:
    """Was this method measured with a program in which task identity leaks?"""
    return method in printed()["leaking"]


def published(table: str, row: str, dataset: str, metric: str, backbone: str = "") -> MeanStd | None:
    """One printed figure, if the paper has it.

    >>> published("table1", "CAPrompt", "imagenet-r", "ACC")
    MeanStd(mean=79.93, spread=0.19, seeds=3)
    >>> published("table3", "Base", "cifar100", "ACC") is None
    True
    """
    rows = printed_rows(table, backbone)
    values = rows.get(row, {}).get(dataset, {}).get(metric)
    return MeanStd(values[0], values[1] if len(values) > 1 else None, seeds=3) if values else None


def printed_rows(table: str, backbone: str = "") -> dict[str, Any]:
    """The rows of a table; that of several backbones has a block for each."""
    rows = printed().get(table, {})
    found: dict[str, Any] = rows.get(backbone, {}) if backbone else rows
    return found
