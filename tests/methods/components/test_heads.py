from __future__ import annotations

import pytest
import torch

from caprompt.errors import OptionError
from caprompt.methods.components.heads import (
    INITIAL_SCALE,
    CosineHead,
    LinearHead,
    LogitScaleOptions,
    NewestRowsHead,
    PrototypeHead,
    ProxyOptions,
    cosines,
)
from caprompt.methods.options import validate_options


@pytest.mark.parametrize("kind", [LinearHead, NewestRowsHead, CosineHead])
def test_growing_keeps_the_old_rows(kind: type[LinearHead | NewestRowsHead | CosineHead]) -> None:
    head = kind(4)
    head.grow(2, torch.Generator().manual_seed(0))
    before = head.weight.detach().clone()
    head.grow(3, torch.Generator().manual_seed(1))
    assert head.weight.shape == (5, 4)
    assert torch.equal(head.weight[:2], before)
    assert head.weight.abs().max() <= 4**-0.5
    assert head(torch.ones(2, 4)).shape == (2, 5)


def test_head_of_newest_rows_computes_what_a_linear_head_does() -> None:
    heads = LinearHead(4), NewestRowsHead(4)
    for head in heads:
        for number, count in enumerate((2, 3)):
            head.grow(count, torch.Generator().manual_seed(number))
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    assert torch.equal(heads[1](features), heads[0](features))


def test_head_of_newest_rows_trains_only_those() -> None:
    head = NewestRowsHead(4)
    head.grow(2, torch.Generator().manual_seed(0))
    head.grow(3, torch.Generator().manual_seed(1))
    assert [tuple(parameter.shape) for parameter in head.parameters()] == [(3, 4), (3,)]
    before = head.weight.detach()[:2], head.bias.detach()[:2]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, weight_decay=0.5)
    head(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert torch.equal(head.weight[:2], before[0])
    assert torch.equal(head.bias[:2], before[1])


def test_prototype_head_compares_with_class_means() -> None:
    head = PrototypeHead(2)
    head.grow(2, torch.Generator())
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    head.statistics.observe_batches([(features, torch.tensor([0, 0, 1]))])
    torch.testing.assert_close(head(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))
    assert not list(head.parameters())


def test_cosines_of_every_pair() -> None:
    features, rows = torch.randn(3, 5), torch.randn(4, 5)
    expected = [[float(torch.dot(f, r) / (f.norm() * r.norm())) for r in rows] for f in features]
    torch.testing.assert_close(cosines(features, rows), torch.tensor(expected))


def test_cosine_head_depends_on_directions_only() -> None:
    head = CosineHead(4, scale=20.0)
    head.grow(3, torch.Generator().manual_seed(0))
    features = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    logits = head(features)
    head.weight.data.mul_(7)
    torch.testing.assert_close(head(3 * features), logits)
    torch.testing.assert_close(head(head.weight.detach()).diagonal(), torch.full((3,), 20.0))


@pytest.mark.parametrize(("scale", "trained"), [(None, ["weight", "scale"]), (20.0, ["weight"])])
def test_cosine_scale_is_trained_unless_fixed(scale: float | None, trained: list[str]) -> None:
    head = CosineHead(4, scale)
    head.grow(2, torch.Generator().manual_seed(0))
    assert [name for name, _ in head.named_parameters()] == trained
    assert torch.as_tensor(head.scale).item() == (scale or INITIAL_SCALE)
    head(torch.ones(1, 4))[0, 0].backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in head.parameters())


def test_initial_value_of_a_trained_scale() -> None:
    assert torch.as_tensor(CosineHead(4, initial=1.5).scale).item() == 1.5


def test_models_saved_before_the_proxy_scale_started_at_ten() -> None:
    assert ProxyOptions().proxy_scale == 1.0
    assert ProxyOptions.complete_saved({})["proxy_scale"] == 10.0


def test_logit_scale_can_change_at_prediction() -> None:
    assert LogitScaleOptions.at_prediction >= {"precision", "scale"}
    with pytest.raises(OptionError, match="greater than 0"):
        validate_options(LogitScaleOptions, {"scale": 0}, "ncm")
