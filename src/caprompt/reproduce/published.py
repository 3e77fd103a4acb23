"""The values printed in the paper, from `published.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from caprompt.metrics import MeanStd
from caprompt.utils.files import read_toml

__all__ = ["get_published", "is_leaking", "load_published"]


@cache
def load_published() -> dict[str, Any]:
    """Load the whole file."""
    return read_toml(Path(__file__).with_name("published.toml"))


def is_leaking(method: str) -> bool:
    """Return whether the paper evaluated this method with code in which task identity leaks."""
    return method in load_published()["leaking"]


def get_published(table: str, row: str, dataset: str, metric: str, backbone: str = "") -> MeanStd | None:
    """Return one printed value, or None where the paper has none.

    >>> get_published("table1", "CAPrompt", "imagenet-r", "ACC")
    MeanStd(mean=79.93, std=0.19, seeds=3)
    >>> get_published("table3", "Base", "cifar100", "ACC") is None
    True
    """
    rows = _get_rows(table, backbone)
    values = rows.get(row, {}).get(dataset, {}).get(metric)
    return MeanStd(values[0], values[1] if len(values) > 1 else None, seeds=3) if values else None


def _get_rows(table: str, backbone: str = "") -> dict[str, Any]:
    """Return the rows of a table; the table of several backbones has a block for each."""
    rows = load_published().get(table, {})
    block: dict[str, Any] = rows.get(backbone, {}) if backbone else rows
    return block
