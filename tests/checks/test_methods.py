"""Every check on every registered method."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import quick_options

from caprompt import ContinualClassifier
from caprompt.methods import registered

sys.path.insert(0, str(Path(__file__).parent))
from method_checks import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", registered())
def test_method(name: str, check: object, backbone: Path) -> None:
    def make(**settings: object) -> ContinualClassifier:
        return ContinualClassifier(name, backbone, **{**quick_options(name), **settings})  # type: ignore[arg-type]

    check(make)  # type: ignore[operator]
