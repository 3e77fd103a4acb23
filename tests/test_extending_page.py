"""The example of docs/extending.md is a method like any other: it is read from the page and passes every check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT

from caprompt.methods import registry
from caprompt.testing import Check, list_checks, model_factory

PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """The example's name, known for as long as this file is tested."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    known = set(registry.list_methods())
    exec(compile(program, str(PAGE), "exec"), {"__name__": "caprompt_example"})
    (new,) = set(registry.list_methods()) - known
    yield new
    del registry._REGISTRY[new]


@pytest.mark.parametrize("check", list_checks(), ids=str)
def test_the_example_passes(check: Check, name: str, backbone: Path) -> None:
    check(model_factory(name, backbone))
