"""Check the built site: every link, anchor and image leads somewhere, every page can be reached, and nothing is fetched elsewhere.

python tools/check_site.py [--site site]

Links to files of the repository on GitHub are checked against this checkout; other addresses are not.
"""

from __future__ import annotations

import argparse
import os
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/caprompt/caprompt"
OUTSIDE = ("http", "https", "mailto", "data")
NOT_LINKED = ("404.html",)  # servers show it


class Page(HTMLParser):
    """The ids and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.repeated: set[str] = set()
        self.links: set[str] = set()
        self.resources: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag defines and where it leads."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            (self.repeated if values["id"] in self.ids else self.ids).add(values["id"])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.resources.add(values.get("href", ""))
        elif "src" in values:
            self.resources.add(values["src"])


def check_site(site: Path) -> list[str]:
    """Return the problems of a site, a sentence each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found: dict[str, list[str]] = {}  # the pages that have a problem
    reached = {site / "index.html"}
    for path, page in pages.items():
        problems = [f"the id '{each}' is used twice" for each in page.repeated]
        problems += [f"'{each}' is fetched from another host" for each in page.resources if urlsplit(each).netloc]
        for link in page.links | page.resources:
            problem, target = find_problem(link, path, site, pages)
            problems += [problem] if problem else []
            reached |= {target} if target and target != path else set()
        for problem in sorted(problems):
            found.setdefault(problem, []).append(path.relative_to(site).as_posix())
    for path in pages.keys() - reached:
        if path.name not in NOT_LINKED:
            found.setdefault("no page links to it", []).append(path.relative_to(site).as_posix())
    return [f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {problem}" for problem, names in found.items()]


def find_problem(link: str, path: Path, site: Path, pages: dict[Path, Page]) -> tuple[str, Path | None]:
    """Return what is wrong with a link of a page, if anything, and the file of the site that it leads to."""
    parts = urlsplit(link)
    if link.startswith(f"{REPOSITORY}/"):
        return ("" if exists_in_repository(link) else f"'{link}' is not in the repository"), None
    if parts.scheme in OUTSIDE or (path.name in NOT_LINKED and link.startswith("/")):
        return "", None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file() or site not in target.parents:
        return f"'{os.path.relpath(target, site)}' does not exist", None
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return f"'{target.relative_to(site).as_posix()}' has no anchor '{anchor}'", target
    return "", target


def exists_in_repository(link: str) -> bool:
    """Return whether an address on GitHub is that of a file or folder of this checkout."""
    kind, _, rest = urlsplit(link).path.removeprefix(urlsplit(REPOSITORY).path).strip("/").partition("/")
    if kind not in ("blob", "tree"):  # issues, releases
        return True
    branch, _, path = rest.partition("/")
    return branch == "main" and (ROOT / unquote(path)).exists()


def main() -> None:
    """Print the problems; exit with status 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check the built site.")
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    problems = check_site(parser.parse_args().site.resolve())
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(f"{len(problems)} problems in the site" if problems else 0)


if __name__ == "__main__":
    main()
