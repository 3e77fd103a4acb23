"""The gradient norms on docs/baselines.md are those in results/accuracy/gradient_norms.json."""

from __future__ import annotations

import json
import re

import pytest
from helpers import ROOT

from caprompt.methods import list_methods

PAGE = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
MEASURED = json.loads((ROOT / "results" / "accuracy" / "gradient_norms.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("method", MEASURED["rows"])
def test_norms_are_the_measured_ones(method: str) -> None:
    norms = [f"{task['median']:.1f}, {task['p90']:.1f}" for task in MEASURED["rows"][method] if task]
    assert re.search(rf"^\| `{method}` \|(.*\|)? {re.escape('; '.join(norms))} \|$", PAGE, flags=re.MULTILINE)


def test_every_trained_method_is_measured() -> None:
    assert MEASURED["rows"].keys() == list_methods().keys() - {"ncm", "ridge"}


def test_conditions_are_stated() -> None:
    assert f"batches of {MEASURED['batch_size']}, {MEASURED['steps']} steps" in PAGE
