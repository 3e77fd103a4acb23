"""Links of the pages lead to files that exist, on GitHub and on the site."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT
from links import find_broken_links

GENERATED = ROOT / "docs" / "reference"  # when the site was built
PAGES = [*ROOT.glob("*.md"), *(path for path in ROOT.glob("docs/**/*.md") if GENERATED not in path.parents)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    assert not find_broken_links(page)


def test_no_page_leaves_the_site() -> None:
    """A relative link out of docs/ works on GitHub only; the address of the file on GitHub works everywhere."""
    docs = ROOT / "docs"
    for page in [path for path in PAGES if docs in path.parents]:
        depth = len(page.relative_to(docs).parts)
        assert f"]({'../' * depth}" not in page.read_text(encoding="utf-8"), page


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "there.md").touch()
    page.write_text(
        "[a](there.md#x) [b](missing.md) [c](https://example.com/missing) [d](#e)\n```\n[f](missing.md)\n```\n"
        "[g](https://github.com/caprompt/caprompt/blob/main/README.md) [h](https://github.com/caprompt/caprompt/blob/main/missing.md)"
    )
    assert find_broken_links(page) == ["missing.md", "https://github.com/caprompt/caprompt/blob/main/missing.md"]
