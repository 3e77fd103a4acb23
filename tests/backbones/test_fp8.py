"""Float8 products: how near they are, that gradients pass, and that a backbone is held in them and released."""

from __future__ import annotations

import pytest
import torch
from helpers import squares, tiny_vit
from torch import nn

from caprompt import ContinualClassifier
from caprompt.backbones.fp8 import Fp8Linear, as_rows, convert_from_fp8, convert_to_fp8, uses_fp8
from caprompt.errors import OptionError


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm() / expected.norm()).detach())


def test_a_row_is_rounded_to_three_bits_whatever_its_size() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 64).unsqueeze(1)
    rows, scales = as_rows(x)
    error = (rows.float() * scales - x).abs() / x.abs().amax(dim=1, keepdim=True)
    assert float(error.max()) < 2**-4
    assert torch.isfinite(rows.float()).all()


def test_products_and_gradients_are_near_the_exact_ones() -> None:
    chance = torch.Generator().manual_seed(0)
    plain = nn.Linear(64, 96).requires_grad_(False)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance))
    x = torch.randn(2, 5, 64, generator=chance, requires_grad=True)
    upper = torch.randn(2, 5, 96, generator=chance)
    (exact,) = torch.autograd.grad(plain(x), x, upper)
    (found,) = torch.autograd.grad(Fp8Linear(plain)(x), x, upper)
    assert 0 < relative(Fp8Linear(plain)(x), plain(x)) < 0.05
    assert 0 < relative(found, exact) < 0.05


def test_a_backbone_is_held_and_released() -> None:
    vit, images = tiny_vit(), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    names, before = list(vit.state_dict()), vit(images)
    assert not uses_fp8(vit)
    assert uses_fp8(convert_to_fp8(vit))
    assert list(vit.state_dict()) == names
    assert 0 < relative(vit(images), before) < 0.1
    assert not uses_fp8(convert_from_fp8(vit))
    assert torch.equal(vit(images), before)
    assert list(vit.state_dict()) == names


def test_where_there_is_no_such_card_that_is_said(backbone) -> None:  # type: ignore[no-untyped-def]
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(OptionError, match="'fp8' needs a GPU that multiplies 8-bit floats"):
        ContinualClassifier(backbone=backbone, precision="fp8")


def test_learning_through_float8(backbone, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """On a CPU the products are computed in float32 of the same rounded numbers, so a whole call of learn can be followed."""
    monkeypatch.setattr("caprompt.classifier.resolve_dtype", lambda name, device: torch.float32)
    settings = {"epochs": 2, "batch_size": 4, "length": 4, "projections": 100}
    model = ContinualClassifier(backbone=backbone, precision="fp8", **settings)  # type: ignore[arg-type]
    assert uses_fp8(model.vit)
    for task in (["red", "green"], ["blue", "yellow"]):
        model.learn(squares(task))
    tests = squares(["red", "green", "blue", "yellow"], each=3, start=90)
    assert model.evaluate(tests).accuracy > 60
    with model.with_options({"precision": "fp32"}):
        assert not uses_fp8(model.vit)
    assert uses_fp8(model.vit)
