from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from helpers import TINY, equal_tensors, tiny_vit
from torch import Tensor, nn

from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import get_trainable_parameters
from caprompt.errors import InputError
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.utils.optimizers import get_optimizer_state, load_optimizer_state, make_optimizer, set_learning_rates


def make_method(**options: object) -> Method:
    method = build_method("caprompt", tiny_vit(), {"length": 4, **options})
    method.begin_task(2, torch.Generator().manual_seed(0))
    return method


def step_and_measure(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return how much a step with gradients of one changes each parameter."""
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [parameter.detach() - old for parameter, old in zip(parameters, before, strict=True)]


def test_head_rate_scales_only_the_learning_rate_of_the_head() -> None:
    groups = build_optimizer(make_method(learning_rate=0.01, head_rate=0.1)).param_groups
    assert [group["base"] for group in groups] == pytest.approx([0.01, 0.001])
    method = make_method(head_rate=0.0)
    prompt, *head = step_and_measure(build_optimizer(method), [method.prompt, *method.head.parameters()])  # type: ignore[list-item]
    assert prompt.abs().min() > 0
    assert not any(part.any() for part in head)


def test_frozen_parameters_are_in_no_group() -> None:
    method = make_method()
    method.head.requires_grad_(False)
    groups = build_optimizer(method).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [method.prompt]
    assert get_trainable_parameters(method) == [method.prompt]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [("sgd", -0.1, -0.19), ("adam", -0.1, -0.1), ("adamw", -0.1, -0.1)],
)
def test_steps_of_each_optimizer(kind: str, first: float, second: float) -> None:
    """Gradients of one at a rate of 0.1: SGD accumulates momentum of 0.9, Adam does not."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer(kind, [([parameter], 0.1)])  # type: ignore[arg-type]
    for expected in (first, second):
        torch.testing.assert_close(step_and_measure(optimizer, [parameter])[0], torch.full((3,), expected), rtol=1e-4, atol=1e-5)


def test_weight_decay_shrinks_parameters() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = make_optimizer("sgd", [([parameter], 0.1)], momentum=0.0, weight_decay=0.5)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 0.95))


def test_learning_rates_are_multiples_of_their_base() -> None:
    optimizer = build_optimizer(make_method(learning_rate=0.01, head_rate=0.1))
    set_learning_rates(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.0005])


def test_optimizer_state_round_trip() -> None:
    method = make_method()
    source, target = build_optimizer(method), build_optimizer(method)
    step_and_measure(source, get_trainable_parameters(method))
    assert not get_optimizer_state(target)
    load_optimizer_state(target, get_optimizer_state(source))
    assert equal_tensors(get_optimizer_state(source), get_optimizer_state(target))
    assert method.vit.config == TINY


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("0.step"),
        lambda state: state.update({"0.exp_avg": state["0.exp_avg"][:1]}),
        lambda state: state.update({"99.step": torch.tensor(1.0)}),
        lambda state: state.update({"x.step": torch.tensor(1.0)}),
        lambda state: state.update({"0.extra": torch.tensor(1.0)}),
        lambda state: state.update({"0.step": torch.tensor(-1.0)}),
        lambda state: state["0.exp_avg_sq"].neg_(),
    ],
)
def test_state_of_another_optimizer_is_refused(change: Callable[[dict[str, Tensor]], object]) -> None:
    method = make_method()
    source, target = build_optimizer(method), build_optimizer(method)
    step_and_measure(source, get_trainable_parameters(method))
    state = get_optimizer_state(source)
    change(state)
    with pytest.raises(InputError, match="does not fit its optimizer, so it is damaged; discard that call"):
        load_optimizer_state(target, state)


@pytest.mark.parametrize(
    ("kind", "reference"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", partial(torch.optim.SGD, momentum=0.9))],
)
def test_steps_are_those_of_the_optimizer_of_pytorch(kind: Literal["adam", "adamw", "sgd"], reference: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, generator=generator)
    gradients = torch.randn(4, 5, generator=generator)
    own, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = (make_optimizer(kind, [([own], 0.1)], weight_decay=0.01), reference([other], lr=0.1, weight_decay=0.01))
    for gradient in gradients:
        for parameter, optimizer in zip((own, other), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
            optimizer.zero_grad()
            assert parameter.grad is None
    assert torch.equal(own, other)


def test_learning_and_predicting_do_not_import_the_compiler() -> None:
    """Importing it takes seconds, and nothing is compiled in so short a training."""
    code = """
import sys
import numpy as np
import torch
from caprompt import ContinualClassifier
from caprompt.backbones.batch_invariance import BatchInvariant

model, images = ContinualClassifier(epochs=1), list(np.random.default_rng(0).integers(0, 255, (4, 40, 40, 3), dtype=np.uint8))
model.learn((images, ["cat", "dog"] * 2))
model.predict(images)
with BatchInvariant(1):  # as on a GPU
    torch.ones(1, 2) @ torch.ones(2, 1)
sys.exit(bool({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
