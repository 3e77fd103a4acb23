"""Every check on every registered method."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import QUICK

from caprompt import ContinualClassifier
from caprompt.methods import find, registered

sys.path.insert(0, str(Path(__file__).parent))
from method_checks import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", registered())
def test_method(name: str, check: object, backbone: Path) -> None:
    known = find(name).options_class.model_fields
    quick = {key: value for key, value in QUICK.items() if key in known}

    def make(**settings: object) -> ContinualClassifier:
        return ContinualClassifier(name, backbone, **{**quick, **settings})  # type: ignore[arg-type]

    check(make)  # type: ignore[operator]
