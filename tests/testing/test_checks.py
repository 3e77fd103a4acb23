"""Every check runs on every registered method; every method has a page in the docs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from caprompt.methods import list_methods, registry
from caprompt.methods.linear import Linear
from caprompt.testing import Check, check_method, list_checks, make_model_factory


@pytest.mark.parametrize("check", list_checks(), ids=str)
@pytest.mark.parametrize("name", list_methods())
def test_method_passes(name: str, check: Check, backbone: Path) -> None:
    check(make_model_factory(name, backbone))


def test_gpu_checks_are_listed_only_with_a_gpu() -> None:
    assert any(check.needs_gpu for check in list_checks()) == torch.cuda.is_available()


def test_check_method_passes() -> None:
    check_method("linear")


def test_check_method_names_the_failing_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class BatchDependent(Linear):
        """A method whose predictions depend on the rest of the batch."""

        def logits(self, images: torch.Tensor) -> torch.Tensor:
            logits = super().logits(images)
            return logits + logits.mean(dim=0)

    monkeypatch.setattr(registry, "_REGISTRY", {**registry.list_methods(), "batch-dependent": BatchDependent})
    BatchDependent.name = "batch-dependent"
    with pytest.raises(AssertionError, match="method 'batch-dependent' fails the check 'batch_invariance'"):
        check_method("batch-dependent")
