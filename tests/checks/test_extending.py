"""The example of docs/extending.md is a method like any other: it is read from the page and passes every check."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caprompt.methods import registry

sys.path.insert(0, str(Path(__file__).parent))
import method_checks
import step_checks

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """The example's name, known for as long as this file is tested."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    known = set(registry.list_methods())
    exec(compile(program, str(PAGE), "exec"), {"__name__": "caprompt_example"})
    (new,) = set(registry.list_methods()) - known
    yield new
    del registry._REGISTRY[new]


@pytest.mark.parametrize("check", [*method_checks.CHECKS, *step_checks.CHECKS], ids=lambda check: check.__name__[len("check_") :])
def test_the_example_passes(check: method_checks.Check, name: str, backbone: Path) -> None:
    check(method_checks.maker(name, backbone))
