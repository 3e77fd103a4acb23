"""Names for WordNet's numbers, by which ImageNet and its relatives call their classes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["class_names"]

_LINE = re.compile(r"(n[0-9]{8})[\s:,]+(\S.*)")


def class_names(numbers: Iterable[str], table: Path) -> dict[str, str]:
    """Each number followed by its first name in `table`, as "n01443537 goldfish": readable, and sorted as the numbers are.

    `table` has lines of a number and names with commas between them; a number it does not name stands alone.
    """
    found: dict[str, str] = {}
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := _LINE.fullmatch(line.strip()):
                found[match[1]] = re.sub(r'[<>:"/\\|?*]', "-", match[2].split(",")[0]).replace("_", " ").strip(" .")
    return {number: f"{number} {found.get(number, '')}".strip() for number in numbers}
