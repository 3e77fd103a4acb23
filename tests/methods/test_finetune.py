from __future__ import annotations

import pytest
import torch
from helpers import TINY, equal_tensors, tiny_vit

from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import get_trainable_parameters
from caprompt.methods.finetune import FineTune, FineTuneOptions
from caprompt.methods.options import Options

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 0, 1])


def make_method(dtype: torch.dtype = torch.float32) -> FineTune:
    method = FineTune(tiny_vit(), FineTuneOptions())
    method.vit.to(dtype)
    method.begin_task(2, torch.Generator().manual_seed(0))
    return method


def train_step(method: FineTune) -> None:
    optimizer = build_optimizer(method)
    method.loss(IMAGES, LABELS)["ce"].backward()
    optimizer.step()


def test_copy_equals_backbone_before_training() -> None:
    method = make_method()
    torch.testing.assert_close(method.features(IMAGES), tiny_vit()(IMAGES))
    assert len(get_trainable_parameters(method)) == len(list(method.vit.parameters())) + 2


def test_step_changes_every_weight_of_the_copy_and_none_of_the_backbone() -> None:
    method = make_method()
    before = {name: tensor.clone() for name, tensor in method.tuned.state_dict().items()}
    train_step(method)
    assert not any(torch.equal(before[name], tensor) for name, tensor in method.tuned.state_dict().items())
    assert equal_tensors(dict(method.vit.state_dict()), dict(tiny_vit().state_dict()))


def test_head_has_a_higher_learning_rate() -> None:
    network, head = build_optimizer(make_method()).param_groups
    assert (network["base"], head["base"]) == (5e-5, pytest.approx(Options().learning_rate))
    assert len(head["params"]) == 2


def test_copy_is_saved_and_restored() -> None:
    method = make_method()
    train_step(method)
    state = method.state()
    assert {name.split(".")[0] for name in state} == {"head", "tuned"}
    other = FineTune(tiny_vit(seed=1), FineTuneOptions())
    other.restore([2], state)
    assert torch.equal(other.predict(IMAGES).logits, method.predict(IMAGES).logits)


def test_half_precision_keeps_float32_weights_and_computes_in_bfloat16() -> None:
    exact, half = make_method(), make_method(torch.bfloat16)
    assert {parameter.dtype for parameter in half.tuned.parameters()} == {torch.float32}
    difference = (exact.features(IMAGES) - half.features(IMAGES)).abs().max()
    assert 0 < difference < 0.1
    assert half.features(IMAGES).dtype == torch.float32
    train_step(half)  # an update of 5e-5 would be lost on weights stored in bfloat16
    assert not torch.equal(half.tuned.blocks[0].attn.qkv.weight, exact.tuned.blocks[0].attn.qkv.weight)
