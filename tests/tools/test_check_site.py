"""The checker finds what is wrong with a site."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT

REPOSITORY = "https://github.com/caprompt/caprompt"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "tools" / "check_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_site(folder: Path, text: str) -> Path:
    (folder / "a").mkdir()
    (folder / "index.html").write_text(f'<p id="top"><a href="a/b.html#there">b</a>{text}')
    (folder / "a" / "b.html").write_text('<p id="there"><a href="../index.html#top">top</a> <img src="../c.png">')
    (folder / "c.png").touch()
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "",
        '<a href="https://example.com/missing">x</a> <img src="data:image/png;base64,AA==">',
        f'<a href="{REPOSITORY}/blob/main/README.md">x</a> <a href="{REPOSITORY}/tree/main/docs">x</a>',
        f'<a href="{REPOSITORY}/issues">x</a>',
        '<a href="#top">x</a> <a href="c.png">x</a>',
    ],
)
def test_nothing_is_wrong(tool: ModuleType, tmp_path: Path, text: str) -> None:
    assert tool.check_site(write_site(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="missing.html">x</a>', "'missing.html' does not exist"),
        ('<a href="a/b.html#nowhere">x</a>', "'a/b.html' has no anchor 'nowhere'"),
        ('<a href="#nowhere">x</a>', "'index.html' has no anchor 'nowhere'"),
        ('<img src="missing.png">', "'missing.png' does not exist"),
        ('<a href="../outside.md">x</a>', "'../outside.md' does not exist"),
        ('<p id="top">', "the id 'top' is used twice"),
        ('<script src="https://example.com/a.js"></script>', "'https://example.com/a.js' is fetched from another host"),
        (f'<a href="{REPOSITORY}/blob/main/missing.md">x</a>', f"'{REPOSITORY}/blob/main/missing.md' is not in the repository"),
    ],
)
def test_problems_are_found(tool: ModuleType, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path.parent / "outside.md").touch()
    assert tool.check_site(write_site(tmp_path, text)) == [f"index.html: {problem}"]


def test_unreachable_page_is_found(tool: ModuleType, tmp_path: Path) -> None:
    (write_site(tmp_path, "") / "lonely.html").write_text('<a href="lonely.html">itself</a> <a href="missing">x</a>')
    assert set(tool.check_site(tmp_path)) == {"lonely.html: 'missing' does not exist", "lonely.html: no page links to it"}
