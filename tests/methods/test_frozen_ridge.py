from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny_vit
from torch import Tensor

from caprompt.methods import build_method
from caprompt.methods.frozen_ridge import FrozenRidge


def build(**options: object) -> FrozenRidge:
    method = build_method("ridge", tiny_vit(), {"projections": 50, **options})
    assert isinstance(method, FrozenRidge)
    return method


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 32, 32, generator=rng)[:, :, :16, :16], torch.randint(2, (count,), generator=rng)


@pytest.mark.parametrize("keep_features", [False, True])
def test_weights_are_those_of_the_equation(keep_features: bool) -> None:
    """W = (G + lambda I)^-1 Q with lambda = 0.1 tr(G) / n, over two calls."""
    method = build(keep_features=keep_features)
    hidden, targets = [], []
    for call in range(2):
        method.begin_task(2, torch.Generator().manual_seed(call))
        images, labels = draw(8, call)
        labels = labels + 2 * call
        method.consolidate([(images[:5], labels[:5]), (images[5:], labels[5:])], torch.Generator())
        with torch.no_grad():
            hidden.append(F.relu(method.vit(images).double() @ method.head.projection.double()))
        targets.append(F.one_hot(labels, 4).double())
    h, y = torch.cat(hidden), torch.cat(targets)
    gram = h.T @ h
    expected = torch.linalg.solve(gram + 0.1 * gram.trace() / len(h) * torch.eye(50, dtype=torch.float64), h.T @ y)
    torch.testing.assert_close(
        method.head.ridge.weight, expected.T, rtol=1e-6, atol=1e-6
    )  # features of other batches are rounded differently
    images, _ = draw(3, 9)
    with torch.no_grad():
        outputs = F.relu(method.vit(images).double() @ method.head.projection.double()) @ expected
    torch.testing.assert_close(method.predict(images).logits.double(), 20 * outputs, rtol=1e-4, atol=1e-4)


def test_honest_scores_are_those_of_left_out_images() -> None:
    method = build()
    method.begin_task(2, torch.Generator().manual_seed(0))
    images, labels = draw(12, 0)
    method.consolidate([(images, labels)], torch.Generator().manual_seed(0))
    scores = method.honest_scores
    assert scores is not None
    assert len(scores.labels) == 12
    in_sample = method.predict(images).logits.argmax(dim=1) == labels
    left_out = scores.logits.argmax(dim=1) == scores.labels
    assert in_sample.double().mean() > left_out.double().mean()  # labels are random: nothing can be learned from other images


def test_nothing_is_trained() -> None:
    method = build()
    assert method.epochs == 0
    assert method.loss(*draw(2, 0)) == {}
