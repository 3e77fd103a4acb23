"""Every check on every registered method."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from caprompt.methods import get_method, list_methods
from caprompt.methods.options import Options

sys.path.insert(0, str(Path(__file__).parent))
import method_checks
import step_checks


@pytest.mark.parametrize("check", [*method_checks.CHECKS, *step_checks.CHECKS], ids=lambda check: check.__name__[len("check_") :])
@pytest.mark.parametrize("name", list_methods())
def test_method(name: str, check: method_checks.Check, backbone: Path) -> None:
    check(method_checks.maker(name, backbone))


@pytest.mark.parametrize("name", list_methods())
def test_every_method_has_its_page(name: str) -> None:
    """Idea, differences, options and cost, on one page that names every option of its own."""
    page = (Path(__file__).parents[2] / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert 12 <= len(page.splitlines()) <= 40
    for word in ("option", "cost"):
        assert word in page.lower()
    own = get_method(name).options_class.model_fields.keys() - Options.model_fields.keys()
    missing = [option for option in sorted(own) if f"`{option}" not in page and f"`{option.split('_')[0]}_*`" not in page]
    assert not missing, missing
