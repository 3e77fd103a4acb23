"""Every check on every registered method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import ROOT

from caprompt.methods import get_method, list_methods, registry
from caprompt.methods.linear import Linear
from caprompt.methods.options import Options
from caprompt.testing import Check, check_method, list_checks, model_factory


@pytest.mark.parametrize("check", list_checks(), ids=str)
@pytest.mark.parametrize("name", list_methods())
def test_method(name: str, check: Check, backbone: Path) -> None:
    check(model_factory(name, backbone))


def test_checks_for_a_gpu_are_listed_where_there_is_one() -> None:
    assert any(check.needs_gpu for check in list_checks()) == torch.cuda.is_available()


def test_a_method_that_passes_every_check() -> None:
    check_method("linear")


def test_a_failing_check_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nonsense(Linear):
        """A method whose predictions depend on the rest of the batch."""

        def logits(self, images: torch.Tensor) -> torch.Tensor:
            logits = super().logits(images)
            return logits + logits.mean(dim=0)

    monkeypatch.setattr(registry, "_REGISTRY", {**registry.list_methods(), "nonsense": Nonsense})
    Nonsense.name = "nonsense"
    with pytest.raises(AssertionError, match="method 'nonsense' fails the check 'batch_invariance'"):
        check_method("nonsense")


@pytest.mark.parametrize("name", list_methods())
def test_every_method_has_its_page(name: str) -> None:
    """Idea, differences, options and cost, on one page that names every option of the method's own."""
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert 12 <= len(page.splitlines()) <= 60
    for word in ("option", "cost"):
        assert word in page.lower()
    own = get_method(name).options_class.model_fields.keys() - Options.model_fields.keys()
    missing = [option for option in sorted(own) if f"`{option}" not in page and f"`{option.split('_')[0]}_*`" not in page]
    assert not missing, missing
