from __future__ import annotations

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.components.heads import ScoreOptions
from caprompt.methods.ncm import NearestClassMean


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def taught(*calls: tuple[Tensor, list[int]], tasks: tuple[int, ...], **options: object) -> NearestClassMean:
    method = NearestClassMean(tiny_vit(), ScoreOptions(**options))  # type: ignore[arg-type]
    for classes, (pictures, labels) in zip(tasks, calls, strict=True):
        if classes:
            method.begin_task(classes, torch.Generator())
        method.consolidate([(pictures, torch.tensor(labels))], torch.Generator())
    return method


def test_logits_are_scaled_cosines_with_the_mean_of_the_raw_features() -> None:
    pictures, others = images(5), images(3, seed=1)
    method = taught((pictures, [0, 0, 1, 1, 1]), tasks=(2,), scale=3.0)
    features, seen = method.vit(pictures).numpy(), method.vit(others).numpy()
    for row, feature in enumerate(seen):
        for label, members in enumerate((features[:2], features[2:])):
            mean = members.mean(axis=0)
            cosine = feature @ mean / ((feature**2).sum() * (mean**2).sum()) ** 0.5
            assert abs(float(method.predict(others).logits[row, label]) - 3.0 * cosine) < 1e-4


def test_neither_tasks_nor_order_nor_calls_matter() -> None:
    pictures = images(6)
    at_once = taught((pictures, [0, 0, 0, 1, 1, 2]), tasks=(3,))
    bit_by_bit = taught((pictures[1:4], [0, 0, 1]), (pictures[5:], [2]), (pictures[[4, 0]], [1, 0]), tasks=(2, 1, 0))
    torch.testing.assert_close(bit_by_bit.predict(pictures).logits, at_once.predict(pictures).logits, rtol=0, atol=1e-5)


def test_nothing_is_trained_and_a_class_costs_its_mean() -> None:
    method = taught((images(2), [0, 1]), tasks=(2,))
    assert method.epochs == 0
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert method.loss(images(2), torch.tensor([0, 1])) == {}
    assert {name: tuple(tensor.shape) for name, tensor in method.state().items()} == {
        "head.statistics.count": (2,),
        "head.statistics.mean": (2, TINY.width),
    }
