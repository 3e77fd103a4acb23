"""Readable names for WordNet IDs, which ImageNet and derived datasets use as class names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["read_class_names"]

_LINE = re.compile(r"(n[0-9]{8})[\s:,]+(\S.*)")


def read_class_names(wordnet_ids: Iterable[str], table: Path) -> dict[str, str]:
    """Return a class name for each WordNet ID, as "n01443537 goldfish".

    It is the ID and its first name in `table`: such names are readable and sort as the IDs do.
    Lines of `table` are an ID and comma-separated names; an ID that is not in it is used alone.
    """
    names: dict[str, str] = {}
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := _LINE.fullmatch(line.strip()):
                names[match[1]] = re.sub(r'[<>:"/\\|?*]', "-", match[2].split(",")[0]).replace("_", " ").strip(" .")
    return {wordnet_id: f"{wordnet_id} {names.get(wordnet_id, '')}".strip() for wordnet_id in wordnet_ids}
