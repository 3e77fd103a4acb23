"""Build the site from mkdocs.yml and docs/ into site/; any warning and any broken link is an error.

python tools/build_site.py [--project .]

Pages of the reference and of notebooks are generated first. The index of the search is written as a script as well, because
pages that are opened from a folder (file://) may not read other files.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import notebook_pages
import reference_pages
from check_site import check_site

ROOT = Path(__file__).resolve().parents[1]


def build_site(project: Path) -> list[str]:
    """Build the site of a folder with mkdocs.yml, docs/, src/ and tools/, and return its problems."""
    docs, site = project / "docs", project / "site"
    reference_pages.write_pages(docs / "reference")
    notebook_pages.write_pages(docs / "notebooks")
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=project, check=True)
    index = (site / "search.json").read_text(encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {index}", encoding="utf-8")
    return check_site(site)


def main() -> None:
    """Build the site, and exit with status 1 if anything is wrong with it."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--project", type=Path, default=ROOT)
    project = parser.parse_args().project.resolve()
    try:
        problems = build_site(project)
    except subprocess.CalledProcessError:
        sys.exit("the site was not built")
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(f"{len(problems)} problems in the site" if problems else 0)


if __name__ == "__main__":
    main()
