"""The page in a real browser, offline: at phone and desktop width, in light and dark, and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsers import find_violations, open_browsers

from caprompt.experiments.study import Study
from caprompt.report import render, write_model_report, write_report
from caprompt.report.model_data import ModelRecord
from caprompt.report.run_data import load_runs
from caprompt.report.study_page import write_study_report

pytestmark = pytest.mark.slow

WIDTHS = (390, 1440)
RUNS = {"one": ["plain"], "several": ["seed0", "seed1", "plain"], "leak": ["leak"], "joint": ["joint"]}
KINDS = (*RUNS, "model", "long", "study")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browsers() as start:
        yield start()


@pytest.fixture(scope="module")
def files(
    runs: Path, record: ModelRecord, long_named: ModelRecord, study: Study, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    for kind, names in RUNS.items():
        write_report([runs / name for name in names], folder / f"{kind}.html")
    write_model_report(record, folder / "model.html")
    write_model_report(long_named, folder / "long.html")
    write_study_report(study, folder / "study.html")
    return {kind: (folder / f"{kind}.html").as_uri() for kind in KINDS}


def open_page(browser: Any, url: str, width: int = 1440, scheme: str = "light") -> tuple[Any, list[str]]:
    """Open a page; return it with a list that collects its errors, warnings and network requests."""
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
    ).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if request.url[:5] not in ("file:", "data:") else None)
    page.goto(url)
    return page, problems


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_page_opens_offline_and_fits_the_width(browser: Any, files: dict[str, str], kind: str, width: int) -> None:
    page, problems = open_page(browser, files[kind], width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for figure in page.locator("svg.figure").all():
        box = figure.bounding_box()
        assert box["width"] >= min(300, width - 60)
        assert box["height"] >= 50
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert problems == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_captions_stay_within_their_boxes(browser: Any, files: dict[str, str], kind: str, width: int) -> None:
    """Text of captions neither leaves the part of a table that is seen, nor runs into the next image."""
    page, _ = open_page(browser, files[kind], width)
    outside = """() => [...document.querySelectorAll('caption span, figcaption, .tiles dd, .tiles dt')].filter(each => {
        const box = each.closest('.scroll, li, figure, .tiles > div').getBoundingClientRect(), own = each.getBoundingClientRect();
        return own.left < box.left - 1 || own.right > box.right + 1 || each.scrollWidth > each.clientWidth + 1;
    }).map(each => each.textContent)"""
    assert page.evaluate(outside) == []
    overlapping = """() => { const boxes = [...document.querySelectorAll('.gallery li')].map(each => {
        const range = document.createRange(); range.selectNodeContents(each); return range.getBoundingClientRect(); });
        return boxes.filter((a, i) => boxes.some((b, j) => i < j
            && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length; }"""
    assert page.evaluate(overlapping) == 0


@pytest.mark.parametrize("kind", ["one", "model", "long"])
def test_confused_classes_are_not_cut_on_a_desktop(browser: Any, files: dict[str, str], kind: str) -> None:
    page, _ = open_page(browser, files[kind])
    region = page.get_by_role("region", name="Most confused classes")
    assert region.evaluate("each => each.scrollWidth <= each.clientWidth")
    assert region.locator("thead th").all_inner_texts()[2].startswith("images")


def test_metrics_of_a_run_with_a_long_name_are_not_cut_on_a_desktop(browser: Any, runs: Path, tmp_path: Path) -> None:
    (run,) = load_runs([runs / "seed0"])
    page = render([replace(run, name="beetles-caprompt-vit_mini_patch8_64.tin200_distilled-seed0")])
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    opened, _ = open_page(browser, (tmp_path / "page.html").as_uri())
    for name in ("All metrics", "Cost of each run"):
        region = opened.get_by_role("region", name=name)
        assert region.evaluate("each => each.scrollWidth <= each.clientWidth"), name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_axe_reports_no_violations(browser: Any, files: dict[str, str], kind: str, width: int, scheme: str) -> None:
    page, _ = open_page(browser, files[kind], width, scheme)
    assert find_violations(page) == []


def test_theme_follows_the_system_and_the_button(browser: Any, files: dict[str, str]) -> None:
    def background(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = (background(open_page(browser, files["one"], scheme=scheme)[0]) for scheme in ("light", "dark"))
    assert light != dark
    page, _ = open_page(browser, files["one"], scheme="light")
    button = page.get_by_role("button", name="theme")
    shown = [background(page)]
    for word in ("dark", "light", "automatic"):
        button.click()
        assert button.inner_text() == f"theme: {word}"
        shown.append(background(page))
    assert shown == [light, dark, light, light]
    button.click()
    page.reload()
    assert background(page) == dark


def test_tables_are_sorted_by_keyboard(browser: Any, files: dict[str, str]) -> None:
    page, _ = open_page(browser, files["several"])
    table = page.locator("table.sortable", has_text="Metrics of every run")
    header = table.locator("th", has_text="ACC").first
    column = "rows => rows.map(row => parseFloat(row.cells[3].textContent))"
    header.get_by_role("button").focus()
    for order, reverse in (("ascending", False), ("descending", True)):
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == order
        values = table.locator("tbody tr").evaluate_all(column)
        assert values == sorted(values, reverse=reverse)
    assert table.locator("th[aria-sort=none]").count() == table.locator("thead th").count() - 1


def test_first_tab_stop_skips_the_navigation(browser: Any, files: dict[str, str]) -> None:
    page, _ = open_page(browser, files["one"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_page_can_be_printed(browser: Any, files: dict[str, str]) -> None:
    page, _ = open_page(browser, files["one"], scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
