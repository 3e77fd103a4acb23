"""Every method has a page in docs/methods."""

from __future__ import annotations

import pytest
from helpers import ROOT

from caprompt.methods import get_method, list_methods
from caprompt.methods.options import Options


@pytest.mark.parametrize("name", list_methods())
def test_every_method_has_a_page(name: str) -> None:
    """The page describes options and cost, and names every option that only this method has."""
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert 12 <= len(page.splitlines()) <= 60
    for word in ("option", "cost"):
        assert word in page.lower()
    own_options = get_method(name).options_class.model_fields.keys() - Options.model_fields.keys()
    missing = [option for option in sorted(own_options) if f"`{option}" not in page and f"`{option.split('_')[0]}_*`" not in page]
    assert not missing, missing
