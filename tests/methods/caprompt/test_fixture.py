"""CAPrompt against exact values of an independent float64 implementation: a step, four cycles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions, concave_gap

FIXTURE = Path(__file__).parents[2] / "fixtures" / "caprompt_step.npz"
CLOSE = {"rtol": 0, "atol": 1e-8}


@pytest.fixture(scope="module")
def step() -> dict[str, Tensor]:
    with np.load(FIXTURE) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file}


@pytest.fixture
def method(step: dict[str, Tensor]) -> CAPrompt:
    weights = {name.removeprefix("vit."): value for name, value in step.items() if name.startswith("vit.")}
    vit = ViT(ViTConfig(32, 8, 24, 3, int(step["num_heads"]), 96, float(step["layer_norm_eps"]))).double()
    vit.load_weights(weights)
    vit.requires_grad_(False)
    options = CAPromptOptions(length=6, layers=tuple(step["prompted_layers"].tolist()), alpha=5, beta=0.2, classifier="aligned")
    caprompt = CAPrompt(vit, options).double()
    for num_classes in step["classes_per_task"].tolist():
        caprompt.begin_task(num_classes, torch.Generator().manual_seed(0))
    with torch.no_grad():
        caprompt.earlier.copy_(step["prompts"][:-1])
        caprompt.prompt.copy_(step["prompts"][-1])
        caprompt.head.weight.copy_(step["head.weight"])
        caprompt.head.bias.copy_(step["head.bias"])
    return caprompt


def test_query_features(method: CAPrompt, step: dict[str, Tensor]) -> None:
    torch.testing.assert_close(method.vit(step["images"]), step["query_features"], **CLOSE)


def test_weights_after_the_first_pass(method: CAPrompt, step: dict[str, Tensor]) -> None:
    weights = method.compute_task_weights(method.compute_first_logits(method.vit.stem(step["images"])))
    torch.testing.assert_close(weights, step["p_cycle2"], **CLOSE)


def test_loss_terms_and_their_sum(method: CAPrompt, step: dict[str, Tensor]) -> None:
    losses = method.loss(step["images"], step["labels"])
    torch.testing.assert_close(losses["ce"], step["loss_ce"], **CLOSE)
    torch.testing.assert_close(losses["concave"], 5 * step["loss_concave"], **CLOSE)
    torch.testing.assert_close(losses["linear"], 0.2 * step["loss_linear"], **CLOSE)
    torch.testing.assert_close(sum(losses.values()), step["loss_total_alpha5_beta0.2"], **CLOSE)


def test_concave_gap(method: CAPrompt, step: dict[str, Tensor]) -> None:
    images, labels, weights = step["images"], step["labels"], step["p_cycle2"]
    old = weights.clone()
    old[:, -1] = 0
    mixtures = {
        "now": torch.eye(4, dtype=torch.float64)[[3] * len(images)],
        "old": old / old.sum(dim=1, keepdim=True),
        "mixed": weights,
    }
    g = {
        name: method.compute_logits(method.vit.stem(images), mixture).softmax(dim=1).gather(1, labels[:, None])[:, 0]
        for name, mixture in mixtures.items()
    }
    gap = concave_gap(weights[:, -1], g["now"], g["old"], g["mixed"])
    torch.testing.assert_close(gap, step["delta"], **CLOSE)


def test_gradients(method: CAPrompt, step: dict[str, Tensor]) -> None:
    total = sum(method.loss(step["images"], step["labels"]).values())
    assert isinstance(total, Tensor)
    total.backward()
    torch.testing.assert_close(method.prompt.grad, step["grad.prompts"][-1], **CLOSE)
    assert not step["grad.prompts"][:-1].any(), "earlier prompts are frozen"
    torch.testing.assert_close(method.head.weight.grad, step["grad.head.weight"], **CLOSE)
    torch.testing.assert_close(method.head.bias.grad, step["grad.head.bias"], **CLOSE)
    assert step["grad.prompts"][-1].abs().max() > 1e-6, "the gradient of the fixture should not be trivial"


@pytest.mark.parametrize("cycles", [1, 2, 3, 4])
def test_predictions_by_cycle(method: CAPrompt, step: dict[str, Tensor], cycles: int) -> None:
    method.options = method.options.model_copy(update={"cycles": cycles})
    output = method.predict(step["images"])
    torch.testing.assert_close(output.logits, step["logits_by_cycle"][cycles - 1], **CLOSE)
    torch.testing.assert_close(output.task_weights, step["weights_by_cycle"][cycles - 1], **CLOSE)
    torch.testing.assert_close(method.compute_task_weights(output.logits), step["weights_by_cycle"][cycles], **CLOSE)
