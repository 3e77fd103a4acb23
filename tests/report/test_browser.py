"""The page in a real browser, with the network switched off: on a telephone and on a desk, in light and in dark, by keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caprompt.report import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.slow

WIDTHS = (390, 1440)
KINDS = {"one": ["plain"], "several": ["seed0", "seed1", "plain"], "leak": ["leak"], "joint": ["joint"]}


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no browser here: install chromium, or say where it is with CHROMIUM")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # CI is root, where it has no sandbox
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("pages")
    for kind, names in KINDS.items():
        write_report([runs / name for name in names], place / f"{kind}.html")
    return {kind: (place / f"{kind}.html").as_uri() for kind in KINDS}


def opened(browser: Any, url: str, width: int = 1440, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page, and a list that fills with whatever goes wrong on it."""
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
    ).new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url) if request.url[:5] not in ("file:", "data:") else None)
    page.goto(url)
    return page, trouble


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_opens_offline_and_fits(browser: Any, files: dict[str, str], kind: str, width: int) -> None:
    page, trouble = opened(browser, files[kind], width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for figure in page.locator("svg.figure").all():
        box = figure.bounding_box()
        assert box["width"] >= min(300, width - 60)
        assert box["height"] >= 50
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert trouble == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_axe_has_no_complaint(browser: Any, files: dict[str, str], kind: str, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page, _ = opened(browser, files[kind], width, scheme)
    violations = axe.Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"], each["nodes"][0]["html"][:200]) for each in violations] == []


def test_the_theme_follows_the_system_and_the_button(browser: Any, files: dict[str, str]) -> None:
    def paper(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = (paper(opened(browser, files["one"], scheme=scheme)[0]) for scheme in ("light", "dark"))
    assert light != dark
    page, _ = opened(browser, files["one"], scheme="light")
    button = page.get_by_role("button", name="theme")
    shown = [paper(page)]
    for word in ("dark", "light", "automatic"):
        button.click()
        assert button.inner_text() == f"theme: {word}"
        shown.append(paper(page))
    assert shown == [light, dark, light, light]
    button.click()
    page.reload()
    assert paper(page) == dark


def test_tables_are_sorted_by_keyboard(browser: Any, files: dict[str, str]) -> None:
    page, _ = opened(browser, files["several"])
    table = page.locator("table.sortable", has_text="Figures of every run")
    header = table.locator("th", has_text="ACC").first
    column = "rows => rows.map(row => parseFloat(row.cells[3].textContent))"
    header.get_by_role("button").focus()
    for order, backwards in (("ascending", False), ("descending", True)):
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == order
        values = table.locator("tbody tr").evaluate_all(column)
        assert values == sorted(values, reverse=backwards)
    assert table.locator("th[aria-sort=none]").count() == table.locator("thead th").count() - 1


def test_the_first_stop_of_the_keyboard_leads_past_the_navigation(browser: Any, files: dict[str, str]) -> None:
    page, _ = opened(browser, files["one"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_it_can_be_printed(browser: Any, files: dict[str, str]) -> None:
    page, _ = opened(browser, files["one"], scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
