"""Links of Markdown pages: to files beside them, and to files of the repository on GitHub."""

from __future__ import annotations

import re
from pathlib import Path

from helpers import ROOT

__all__ = ["find_broken_links"]

REPOSITORY = r"https://github\.com/caprompt/caprompt/(?:blob|tree)/main/"


def find_broken_links(page: Path) -> list[str]:
    """Return the links of a page to files that do not exist; addresses outside of the repository are not checked."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"""(?:href|src)="([^"]+)""", text):
        name = target.partition("#")[0]
        if repository := re.match(REPOSITORY, name):
            exists = (ROOT / name[repository.end() :]).exists()
        else:
            exists = not name or re.match(r"[a-z]+:", name) is not None or (page.parent / name).exists()
        broken += [] if exists else [target]
    return broken
