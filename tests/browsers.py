"""The browser for tests of pages: find it, start it, and ask axe about accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["find_violations", "open_browsers"]


@contextmanager
def open_browsers() -> Iterator[Callable[..., Any]]:
    """Yield a function that starts Chromium with further flags; all are closed at the end. Skip where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no browser is installed: install chromium, or set CHROMIUM to its path")
    with sync_api.sync_playwright() as playwright:
        browsers = []

        def start(*flags: str) -> Any:
            # there is no sandbox for root, as in CI
            browsers.append(playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *flags]))
            return browsers[-1]

        yield start
        for browser in browsers:
            browser.close()


def find_violations(page: Any) -> list[tuple[str, str, str]]:
    """Return what axe reports about a page: rule, impact, and the first element."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    options = {"resultTypes": ["violations"]}  # it need not describe what is right
    violations = axe.Axe().run(page, options=options).response["violations"]
    return [(each["id"], each["impact"], each["nodes"][0]["html"][:200]) for each in violations]
