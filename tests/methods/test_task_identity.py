from __future__ import annotations

import torch
from torch import nn

from caprompt.methods.hide_prompt import TaskIdentity


def made(*tasks: int, width: int = 6) -> TaskIdentity:
    identity = TaskIdentity(width)
    for number, classes in enumerate(tasks):
        identity.grow(classes, torch.Generator().manual_seed(number))
    return identity


def test_logits_are_those_of_the_same_layers_of_pytorch() -> None:
    identity = made(2, 3)
    for _, weight in identity.named_buffers():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)))
    into, back, norm, rows = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6), nn.Linear(6, 5)
    for layer, names in (
        (into, ("into", "into_bias")),
        (back, ("back", "back_bias")),
        (norm, ("scale", "shift")),
        (rows, ("rows", "rows_bias")),
    ):
        layer.load_state_dict({"weight": getattr(identity, names[0]), "bias": getattr(identity, names[1])})
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(identity(features), rows(norm(features + back(nn.GELU()(into(features))))))


def test_further_classes_leave_the_earlier_logits_as_they_were() -> None:
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    before, after = made(2)(features), made(2, 3)(features)
    assert after.shape == (4, 5)
    torch.testing.assert_close(after[:, :2], before)


def test_its_weights_learn_within_learning_only() -> None:
    identity = made(3)
    names = {name for name, _ in identity.named_buffers()}
    before = identity.rows.clone()
    assert not list(identity.parameters())
    with identity.learning():
        assert {name for name, _ in identity.named_parameters()} == names
        optimizer = torch.optim.SGD(identity.parameters(), lr=0.1)
        nn.functional.cross_entropy(identity(torch.ones(1, 6)), torch.tensor([2])).backward()
        optimizer.step()
    assert not list(identity.parameters())
    assert set(identity.state_dict()) == names
    assert not identity.rows.requires_grad
    assert not torch.equal(identity.rows, before)
