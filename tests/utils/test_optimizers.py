from __future__ import annotations

import pytest
import torch
from helpers import TINY, same_tensors, tiny_vit
from torch import Tensor, nn

from caprompt.engine.trainer import build_optimizer, trainable_parameters
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.utils.optimizers import load_optimizer_state, make_optimizer, optimizer_state, set_learning_rates


def method(**options: object) -> Method:
    made = build_method("caprompt", tiny_vit(), {"length": 4, **options})
    made.begin_task(2, torch.Generator().manual_seed(0))
    return made


def moved(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[Tensor]:
    """How far a step with gradients of one takes each parameter."""
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [parameter.detach() - old for parameter, old in zip(parameters, before, strict=True)]


def test_head_rate_scales_the_heads_rate_only() -> None:
    groups = build_optimizer(method(learning_rate=0.01, head_rate=0.1)).param_groups
    assert [group["base"] for group in groups] == pytest.approx([0.01, 0.001])
    still = method(head_rate=0.0)
    prompt, *head = moved(build_optimizer(still), [still.prompt, still.head.weight, still.head.bias])  # type: ignore[list-item]
    assert prompt.abs().min() > 0
    assert not any(part.any() for part in head)


def test_what_is_frozen_is_in_no_group() -> None:
    made = method()
    made.head.requires_grad_(False)
    groups = build_optimizer(made).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [made.prompt]
    assert trainable_parameters(made) == [made.prompt]


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [("sgd", -0.1, -0.19), ("adam", -0.1, -0.1), ("adamw", -0.1, -0.1)],
)
def test_each_kind_moves_as_its_textbook_says(kind: str, first: float, second: float) -> None:
    """Gradients of one at a rate of 0.1: SGD gathers momentum 0.9, Adam does not."""
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer(kind, [([parameter], 0.1)])  # type: ignore[arg-type]
    for expected in (first, second):
        torch.testing.assert_close(moved(optimizer, [parameter])[0], torch.full((3,), expected), rtol=1e-4, atol=1e-5)


def test_weight_decay_pulls_to_zero() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = make_optimizer("sgd", [([parameter], 0.1)], momentum=0.0, weight_decay=0.5)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((2,), 0.95))


def test_rates_are_multiples_of_their_base() -> None:
    optimizer = build_optimizer(method(learning_rate=0.01, head_rate=0.1))
    set_learning_rates(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.0005])


def test_moments_survive_a_round_trip() -> None:
    made = method()
    one, two = build_optimizer(made), build_optimizer(made)
    moved(one, trainable_parameters(made))
    assert not optimizer_state(two)
    load_optimizer_state(two, optimizer_state(one))
    assert same_tensors(optimizer_state(one), optimizer_state(two))
    assert made.vit.config == TINY
