"""The house stays in order: every module has its test file, no file outgrows its idea, no workshop traces."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "caprompt"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_has_its_test_file(module: Path) -> None:
    assert (ROOT / "tests" / module.parent / f"test_{module.name}").is_file()


def test_the_papers_method_fits_under_300_lines() -> None:
    assert len((PACKAGE / "methods" / "caprompt.py").read_text().splitlines()) < 300


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_module_outgrows_its_idea(module: Path) -> None:
    assert len((PACKAGE / module).read_text().splitlines()) <= 350
