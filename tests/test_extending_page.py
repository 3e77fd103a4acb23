"""The example method of docs/extending.md, read from the page, passes every check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT

from caprompt.methods import registry
from caprompt.testing import Check, list_checks, make_model_factory

PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """Register the example while the tests of this module run, and yield its name."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    before = set(registry.list_methods())
    exec(compile(code, str(PAGE), "exec"), {"__name__": "caprompt_example"})
    (new,) = set(registry.list_methods()) - before
    yield new
    del registry._REGISTRY[new]


@pytest.mark.parametrize("check", list_checks(), ids=str)
def test_example_passes(check: Check, name: str, backbone: Path) -> None:
    check(make_model_factory(name, backbone))
