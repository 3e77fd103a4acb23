"""Float8 matmuls: their error, their gradients, and conversion of a backbone to float8 and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import squares, tiny_vit
from torch import nn

from caprompt import ContinualClassifier
from caprompt.backbones.fp8 import Fp8Linear, convert_from_fp8, convert_to_fp8, quantize_rows, uses_fp8
from caprompt.errors import OptionError


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((output - expected).norm() / expected.norm()).detach())


def test_rows_are_rounded_to_three_bits_at_any_scale() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 64).unsqueeze(1)
    rows, scales = quantize_rows(x)
    error = (rows.float() * scales - x).abs() / x.abs().amax(dim=1, keepdim=True)
    assert float(error.max()) < 2**-4
    assert torch.isfinite(rows.float()).all()


def test_outputs_and_gradients_are_near_the_exact_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 96).requires_grad_(False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(2, 5, 64, generator=generator, requires_grad=True)
    upstream = torch.randn(2, 5, 96, generator=generator)
    (exact,) = torch.autograd.grad(layer(x), x, upstream)
    (gradient,) = torch.autograd.grad(Fp8Linear(layer)(x), x, upstream)
    assert 0 < relative_error(Fp8Linear(layer)(x), layer(x)) < 0.05
    assert 0 < relative_error(gradient, exact) < 0.05


def test_conversion_to_float8_and_back() -> None:
    vit, images = tiny_vit(), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    names, before = list(vit.state_dict()), vit(images)
    assert not uses_fp8(vit)
    assert uses_fp8(convert_to_fp8(vit))
    assert list(vit.state_dict()) == names
    assert 0 < relative_error(vit(images), before) < 0.1
    assert not uses_fp8(convert_from_fp8(vit))
    assert torch.equal(vit(images), before)
    assert list(vit.state_dict()) == names


def test_devices_without_float8_are_rejected(backbone: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(OptionError, match="'fp8' needs a GPU with float8 matmuls"):
        ContinualClassifier(backbone=backbone, precision="fp8")


def test_learning_in_float8(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU multiplies the same quantized values in float32, so `learn` can be tested there."""
    monkeypatch.setattr("caprompt.classifier.state.resolve_dtype", lambda name, device: torch.float32)
    settings = {"epochs": 2, "batch_size": 4, "length": 4, "projections": 100}
    model = ContinualClassifier(backbone=backbone, precision="fp8", **settings)  # type: ignore[arg-type]
    assert uses_fp8(model.method.vit)
    for task in (["red", "green"], ["blue", "yellow"]):
        model.learn(squares(task))
    tests = squares(["red", "green", "blue", "yellow"], each=3, start=90)
    assert model.evaluate(tests).accuracy > 60
    with model.override_options({"precision": "fp32"}):
        assert not uses_fp8(model.method.vit)
    assert uses_fp8(model.method.vit)
