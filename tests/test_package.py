"""The layout of the package: few modules at the top, distinct module names, every data file in the wheel."""

from __future__ import annotations

import fnmatch
import re
import subprocess

from helpers import ROOT

from caprompt.utils.files import read_toml

PACKAGE = ROOT / "src" / "caprompt"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
ENDINGS = r"(ations?|ing|ers?|ors?|ed|es|e|s)$"


def test_the_top_of_the_package_holds_a_few_public_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 9


def test_no_two_module_names_differ_by_an_ending() -> None:
    names = {path.stem.lstrip("_") for path in MODULES} | {path.parent.name for path in MODULES}
    stems: dict[str, set[str]] = {}
    for name in names:
        stems.setdefault(re.sub(ENDINGS, "", name), set()).add(name)
    assert [sorted(similar) for similar in stems.values() if len(similar) > 1] == []


def test_every_test_file_has_its_module() -> None:
    """A test of a/b.py is tests/a/test_b.py; tests of no single module stand at the top of tests/, in docs/ or in robust/."""
    modules = [*MODULES, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    known = {path.relative_to(PACKAGE).with_name(f"test_{path.stem.lstrip('_')}.py") for path in modules}
    outside = {"cli/commands/test_run_bad_data.py", "methods/caprompt/test_fixture.py"}
    outside |= {"report/test_browser.py", "testing/test_model_behavior.py"}
    stray = []
    for path in sorted((ROOT / "tests").glob("*/**/test_*.py")):
        relative = path.relative_to(ROOT / "tests")
        if relative.parts[0] not in ("docs", "robust", "tools") and relative not in known and str(relative) not in outside:
            stray.append(str(relative))
    assert stray == []


def test_every_data_file_is_declared_for_the_wheel() -> None:
    patterns = read_toml(ROOT / "pyproject.toml")["tool"]["setuptools"]["package-data"]["caprompt"]
    listed = subprocess.run(
        ["git", "ls-files", "src/caprompt"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    data = [path.removeprefix("src/caprompt/") for path in listed if not path.endswith(".py")]
    assert data
    assert [path for path in data if not any(fnmatch.fnmatch(path, pattern) for pattern in patterns)] == []
