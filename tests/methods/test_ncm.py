from __future__ import annotations

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.ncm import NearestClassMean, NearestClassMeanOptions


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_trained_method(*calls: tuple[Tensor, list[int]], tasks: tuple[int, ...], **options: object) -> NearestClassMean:
    method = NearestClassMean(tiny_vit(), NearestClassMeanOptions(**options))  # type: ignore[arg-type]
    for classes, (images, labels) in zip(tasks, calls, strict=True):
        if classes:
            method.begin_task(classes, torch.Generator())
        method.consolidate([(images, torch.tensor(labels))], torch.Generator())
    return method


def test_logits_are_scaled_cosines_with_the_mean_of_raw_features() -> None:
    images, others = random_images(5), random_images(3, seed=1)
    method = make_trained_method((images, [0, 0, 1, 1, 1]), tasks=(2,), scale=3.0)
    features, seen = method.vit(images).numpy(), method.vit(others).numpy()
    for row, feature in enumerate(seen):
        for label, members in enumerate((features[:2], features[2:])):
            mean = members.mean(axis=0)
            cosine = feature @ mean / ((feature**2).sum() * (mean**2).sum()) ** 0.5
            assert abs(float(method.predict(others).logits[row, label]) - 3.0 * cosine) < 1e-4


def test_result_is_independent_of_tasks_order_and_calls() -> None:
    images = random_images(6)
    at_once = make_trained_method((images, [0, 0, 0, 1, 1, 2]), tasks=(3,))
    incremental = make_trained_method((images[1:4], [0, 0, 1]), (images[5:], [2]), (images[[4, 0]], [1, 0]), tasks=(2, 1, 0))
    torch.testing.assert_close(incremental.predict(images).logits, at_once.predict(images).logits, rtol=0, atol=1e-5)


def test_nothing_is_trained_and_state_holds_class_means() -> None:
    method = make_trained_method((random_images(2), [0, 1]), tasks=(2,))
    assert method.epochs == 0
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert method.loss(random_images(2), torch.tensor([0, 1])) == {}
    assert {name: tuple(tensor.shape) for name, tensor in method.state().items()} == {
        "head.statistics.count": (2,),
        "head.statistics.mean": (2, TINY.width),
    }
