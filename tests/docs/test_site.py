"""The site: it builds strictly, its reference is complete, and its pages work in a browser, offline, on phones and desktops."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsers import find_violations, open_browsers
from helpers import ROOT

import caprompt
from caprompt.cli.app import app
from caprompt.methods import list_methods

pytestmark = pytest.mark.slow

PAGES = ("tutorials/photos", "reference/python/outputs", "reference/commands", "results", "performance")
WIDE = ("backbones", "scale", "reference/methods", "reference/python/classifier")
COMBINATIONS = [  # colors do not depend on the width: the first page in all four, other pages in both widths and both schemes
    *(("index", width, scheme) for width in (390, 1440) for scheme in ("light", "dark")),
    *((name, width, scheme) for name in PAGES for width, scheme in ((390, "dark"), (1440, "light"))),
]


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


class QuietServer(ThreadingHTTPServer):
    """A server that does not mind pages that are closed before all is sent."""

    def handle_error(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site, and return its address."""
    server = QuietServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def open_context() -> Iterator[Callable[[int, str], Any]]:
    """Return a function that opens a window of a browser, one for each width and color scheme; its cache saves time."""
    with open_browsers() as start:
        browser = start()

        @functools.cache
        def open_once(width: int, scheme: str) -> Any:
            return browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")

        yield open_once


def open_page(context: Any, url: str) -> tuple[Any, list[str]]:
    """Open a page; return it with a list that collects its errors, warnings and requests to other hosts."""
    page = context.new_page()
    problems: list[str] = []
    host = re.match(r"\w+://[^/]*", url)
    assert host is not None
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((host[0], "data:")) else problems.append(request.url))
    page.goto(url)
    return page, problems


def read_ids(*files: Path) -> set[str]:
    return {found for file in files for found in re.findall(r' id="([^"]+)"', file.read_text(encoding="utf-8"))}


def read_sections(file: Path) -> dict[str, str]:
    """Return the sections of a page by the ids of their headings."""
    return dict(re.findall(r'<h2 id="([\w-]+)">(.*?)(?=<h2 |</article>)', file.read_text(encoding="utf-8"), flags=re.DOTALL))


def list_public_names() -> Iterator[str]:
    for module in pkgutil.walk_packages(caprompt.__path__, "caprompt."):
        if not module.name.startswith("caprompt.cli") and not any(part.startswith("_") for part in module.name.split(".")):
            yield from (f"{module.name}.{name}" for name in read_exported_names(module.name))
    yield from (f"caprompt.{name}" for name in caprompt.__all__)


def read_exported_names(module: str) -> Sequence[str]:
    """Return `__all__` of a module; of one with kernels for a GPU, which imports Triton, from its text."""
    try:
        names: Sequence[str] = getattr(importlib.import_module(module), "__all__", ())
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        text = (ROOT / "src" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        names = ast.literal_eval(re.search(r"^__all__ = (\[.*?\])$", text, flags=re.MULTILINE)[1])  # type: ignore[index]
    return names


def test_every_public_name_has_an_anchor(site: Path) -> None:
    names, ids = set(list_public_names()), read_ids(*(site / "reference" / "python").glob("*.html"))
    assert len(names) > 500
    assert sorted(names - ids) == []


def test_every_command_and_option(site: Path) -> None:
    sections = read_sections(site / "reference" / "commands.html")
    commands = {name for name in app if not name.startswith("-")}
    assert commands == {name.removeprefix("caprompt-") for name in sections}
    for name in commands:
        for argument in app[name].assemble_argument_collection(default_parameter=app.default_parameter):
            assert all(option in sections[f"caprompt-{name}"] for option in argument.names), (name, argument.names)


def test_every_method_and_option(site: Path) -> None:
    sections = read_sections(site / "reference" / "methods.html")
    options = {name: set(re.findall(r"<td[^>]*><code>(\w+)</code>", text)) for name, text in sections.items()}
    methods = {name: method for name, method in list_methods().items() if method.__module__.startswith("caprompt.")}
    assert methods.keys() | {"all"} == options.keys()
    for name, method in methods.items():
        assert method.options_class.model_fields.keys() <= options["all"] | options[name], name


def test_files_beside_the_pages(site: Path) -> None:
    assert json.loads((site / "openapi.json").read_text())["openapi"]
    for name in ("example-report.html", "images/explain.png", "images/results/small/table1.svg"):
        assert (site / name).is_file()


@pytest.mark.parametrize(("name", "width", "scheme"), COMBINATIONS)
def test_page_is_accessible(open_context: Callable[[int, str], Any], address: str, name: str, width: int, scheme: str) -> None:
    page, problems = open_page(open_context(width, scheme), f"{address}/{name}.html")
    assert not find_violations(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not problems
    page.close()


@pytest.mark.parametrize("name", WIDE)
def test_wide_tables_do_not_widen_the_page(open_context: Callable[[int, str], Any], address: str, name: str) -> None:
    page, problems = open_page(open_context(390, "light"), f"{address}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not problems
    page.close()


@pytest.mark.parametrize("protocol", ["http", "file"])
def test_search(open_context: Callable[[int, str], Any], site: Path, address: str, protocol: str) -> None:
    """Without a network, from a server and from a folder, search finds the command that forgets a class."""
    url = f"{address}/index.html" if protocol == "http" else (site / "index.html").as_uri()
    page, problems = open_page(open_context(1440, "light"), url)
    page.get_by_role("button", name="Search").first.click()
    page.get_by_role("combobox").fill("forget")
    page.get_by_text(re.compile(r"^\d+ results$")).wait_for()
    links = [option.get_attribute("href") for option in page.get_by_role("option").all()]
    assert any("reference" in link and "forget" in link for link in links)
    page.get_by_role("option").first.click()
    page.wait_for_url(re.compile(r".*h=forget.*"))
    assert "forget" in page.locator("article").inner_text()
    assert not problems
    page.close()
