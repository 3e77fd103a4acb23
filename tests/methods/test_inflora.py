from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine.trainer import trainable_parameters
from caprompt.methods.inflora import InfLoRA, InfLoRAOptions, KeyValueChange, ProtectedSubspaces

SIZE = TINY.image_size
RANK = 3


def images(seed: int, count: int = 12) -> Tensor:
    """Pictures of a kind: one pattern for all, and noise."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 3, SIZE, SIZE, generator=generator) + 0.3 * torch.randn(count, 3, SIZE, SIZE, generator=generator)


def made(**options: float) -> InfLoRA:
    return InfLoRA(tiny_vit(), InfLoRAOptions(rank=RANK, **options))  # type: ignore[arg-type]


def learn(method: InfLoRA, seed: int) -> Tensor:
    """A task of two classes as the loop does it, in a few large steps; returns B as it was before it was merged."""
    method.begin_task(2, torch.Generator().manual_seed(seed))
    pictures, labels = images(seed), method.num_known_classes + torch.arange(12) % 2
    batches = [(pictures[:8], labels[:8]), (pictures[8:], labels[8:])]
    method.prepare(batches, torch.Generator())
    optimizer = torch.optim.SGD(trainable_parameters(method), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        method.loss(pictures, labels)["ce"].backward()
        optimizer.step()
    learned = method.up.detach().clone()
    method.consolidate(batches, torch.Generator())
    return learned


def first_inputs(pictures: Tensor) -> Tensor:
    """What comes to the first attention layer, (tokens, D): no method changes it."""
    return tiny_vit().stem(pictures).normed.flatten(0, 1)


def test_keys_and_values_change_as_if_their_weights_did() -> None:
    generator = torch.Generator().manual_seed(0)
    layers, width = TINY.depth, TINY.width
    merged, up = (torch.randn(layers, 2 * width, size, generator=generator) * 0.05 for size in (width, RANK))
    down = torch.randn(layers, RANK, width, generator=generator) * 0.05
    changed = tiny_vit()
    for layer, block in enumerate(changed.blocks):
        block.attn.qkv.weight[width:] += merged[layer] + up[layer] @ down[layer]
    pictures = images(0)
    expected = changed(pictures)
    torch.testing.assert_close(tiny_vit()(pictures, KeyValueChange(merged, up, down)), expected, rtol=1e-4, atol=1e-4)
    assert (expected - tiny_vit()(pictures)).abs().max() > 0.01


def test_the_first_tasks_directions_are_the_principal_ones_of_its_inputs() -> None:
    method = made()
    method.begin_task(2, torch.Generator())
    pictures = images(1)
    method.prepare([(pictures[:5], torch.zeros(5)), (pictures[5:], torch.zeros(7))], torch.Generator())
    inputs = first_inputs(pictures).double()
    principal = torch.linalg.svd(inputs, full_matrices=False).Vh[:RANK]  # right singular vectors of the inputs themselves
    found = method.down[0].double() * 3**0.5
    torch.testing.assert_close((found @ principal.T).abs(), torch.eye(RANK, dtype=torch.float64), rtol=0, atol=1e-4)


def test_preparing_changes_no_answer_and_merging_none() -> None:
    method = made()
    learn(method, 0)
    method.begin_task(2, torch.Generator().manual_seed(1))
    before = method.predict(images(0)).logits
    batches = [(images(1), torch.arange(12) % 2 + 2)]
    method.prepare(batches, torch.Generator())
    torch.testing.assert_close(method.predict(images(0)).logits, before, rtol=0, atol=0)
    with torch.no_grad():
        method.up.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    trained = method.predict(images(0)).logits
    method.consolidate(batches, torch.Generator())
    assert not method.up.any()
    torch.testing.assert_close(method.predict(images(0)).logits, trained, rtol=1e-4, atol=1e-4)
    assert (trained - before).abs().max() > 1e-3


def test_what_a_later_task_learns_hardly_touches_old_inputs() -> None:
    """With G of the old inputs, the mean change of keys and values is at most |B|² r^½ (1 - threshold)^½ |G| / 3."""
    method = made(threshold=0.99)
    learn(method, 0)
    before = method.merged[0].clone()
    up = learn(method, 1)[0]
    change = method.merged[0] - before
    old, new = first_inputs(images(0)), first_inputs(images(1))
    moment = old.T @ old / len(old)
    mean_change = F.linear(old, change).square().sum(dim=1).mean()
    bound = torch.linalg.matrix_norm(up, 2) ** 2 * (RANK * (1 - 0.99)) ** 0.5 * moment.norm() / 3
    assert 0 < mean_change < bound
    assert mean_change < 0.2 * F.linear(new, change).square().sum(dim=1).mean()


def test_without_protection_the_same_training_does_touch_them() -> None:
    """The bound above is the protection's doing, not that of small steps."""
    protected, free = made(threshold=0.99), made(threshold=0.99)
    changes = []
    for method in (protected, free):
        learn(method, 0)
        if method is free:
            method.protected = ProtectedSubspaces(TINY.depth, TINY.width)
        before = method.merged[0].clone()
        learn(method, 1)
        changes.append(F.linear(first_inputs(images(0)), method.merged[0] - before).square().sum())
    assert changes[0] < 0.2 * changes[1]


def test_the_share_that_is_protected_rises_towards_one() -> None:
    method, shares = made(threshold=0.9, approach=0.5), []
    for _ in range(4):
        method.begin_task(1, torch.Generator())
        shares.append(method.share)
    assert shares == pytest.approx([0.9, 0.95, 0.975, 0.9875])


def test_twelve_tasks_take_no_more_room_than_one() -> None:
    method = made()
    shapes = {name: tensor.shape for name, tensor in method.state().items() if not name.startswith("head.")}
    for task in range(12):
        learn(method, task)
    assert {name: tensor.shape for name, tensor in method.state().items() if not name.startswith("head.")} == shapes
    assert method.predict(images(0)).logits.isfinite().all()
    assert {id(parameter) for parameter in trainable_parameters(method)} == {
        id(p) for p in (method.up, method.head.weight, method.head.bias)
    }
