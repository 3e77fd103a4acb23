from __future__ import annotations

import math

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.ssiat import FLOOR, Ssiat, SsiatOptions, estimate_drift


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_method(**options: object) -> Ssiat:
    """Build a method that has learned one task of two classes."""
    method = Ssiat(tiny_vit(), SsiatOptions(**{"bottleneck": 4, "align_epochs": 0, **options}))  # type: ignore[arg-type]
    method.begin_task(2, torch.Generator().manual_seed(0))
    method.consolidate([(random_images(8), torch.arange(8) % 2)], torch.Generator().manual_seed(0))
    return method


def perturb_adapter(method: Ssiat) -> Ssiat:
    """Change the adapter as training would."""
    method.adapter.up.data.normal_(0, 3, generator=torch.Generator().manual_seed(4))
    return method


def test_drift_matches_manual_computation() -> None:
    """Two images at squared distances 1 and 9 from the mean move by 1 and 3 along two axes."""
    earlier, later = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[2.0, 0.0], [0.0, 6.0]])
    near, far = (math.exp(-square / (2 * 0.25 * 5)) + FLOOR for square in (1, 9))
    expected = torch.tensor([[near * 1, far * 3]]) / (near + far)
    torch.testing.assert_close(estimate_drift(earlier, later, torch.zeros(1, 2), 0.5), expected)


def test_drift_scales_with_features() -> None:
    generator = torch.Generator().manual_seed(0)
    earlier, change, means = (torch.randn(count, 6, generator=generator) for count in (9, 9, 3))
    small = estimate_drift(earlier, earlier + change, means, 0.5)
    torch.testing.assert_close(estimate_drift(100 * earlier, 100 * (earlier + change), 100 * means, 0.5), 100 * small)
    assert not torch.allclose(small, change.mean(dim=0).expand(3, -1), atol=0.05), (
        "near images should have more weight than far ones"
    )
    torch.testing.assert_close(
        estimate_drift(earlier, earlier + change, means, 100.0), change.mean(dim=0).expand(3, -1), rtol=0, atol=1e-3
    )


def test_drift_of_images_equal_to_the_mean() -> None:
    earlier = torch.ones(2, 3)
    torch.testing.assert_close(estimate_drift(earlier, earlier + 1, earlier[:1], 0.5), torch.ones(1, 3))


def test_old_means_follow_paired_features() -> None:
    """The pairs are the same images under the previous and the current adapter."""
    method = make_method()
    before = method.statistics.mean.clone()
    a = method.vit(random_images(6, seed=1), method.adapter.branches()).detach()
    method.begin_task(1, torch.Generator().manual_seed(1))
    perturb_adapter(method)
    b = method.vit(random_images(6, seed=1), method.adapter.branches()).detach()
    labels = torch.full((6,), 2)
    batches = [(random_images(6, seed=1)[part], labels[part]) for part in (slice(0, 4), slice(4, 6))]
    method.consolidate(batches, torch.Generator().manual_seed(1))
    torch.testing.assert_close(method.statistics.mean[:2], before + estimate_drift(a, b, before, 0.5), rtol=0, atol=1e-4)
    assert (method.statistics.mean[:2] - before).norm() > 0.1
    torch.testing.assert_close(method.statistics.mean[2], b.mean(dim=0))


def test_drift_is_corrected_once() -> None:
    """Further images that are not trained on change only the mean of their own class."""
    method = make_method()
    method.begin_task(1, torch.Generator().manual_seed(1))
    perturb_adapter(method).consolidate([(random_images(4, seed=1), torch.full((4,), 2))], torch.Generator().manual_seed(1))
    before = method.statistics.mean.clone()
    method.consolidate([(random_images(3, seed=2), torch.zeros(3, dtype=torch.long))], torch.Generator().manual_seed(2))
    assert torch.equal(method.statistics.mean[1:], before[1:])
    more = method.vit(random_images(3, seed=2), method.adapter.branches())
    torch.testing.assert_close(method.statistics.mean[0], (4 * before[0] + more.sum(dim=0)) / 7)


def test_previous_adapter_survives_a_checkpoint_within_a_task() -> None:
    method = make_method()
    method.begin_task(1, torch.Generator().manual_seed(1))
    checkpoint = perturb_adapter(method).state()
    resumed = Ssiat(tiny_vit(), method.options)
    resumed.restore([2, 1], {name: tensor.clone() for name, tensor in checkpoint.items()})
    for each in (method, resumed):
        each.consolidate([(random_images(4, seed=1), torch.full((4,), 2))], torch.Generator().manual_seed(1))
    assert torch.equal(resumed.statistics.mean, method.statistics.mean)
    assert not torch.equal(resumed.before, checkpoint["before"])


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_loss_is_a_margin_softmax_among_classes_of_the_task(margin: float) -> None:
    method = make_method(margin=margin)
    method.begin_task(3, torch.Generator().manual_seed(1))
    images, labels = random_images(3), [2, 3, 4]
    features = method.vit(images, method.adapter.branches()).detach()
    losses = []
    for feature, label in zip(features, labels, strict=True):
        cosines = [float(feature @ row / (feature.norm() * row.norm())) for row in method.head.weight.detach()[2:]]
        own = math.exp(20 * (cosines[label - 2] - margin))
        others = sum(math.exp(20 * value) for index, value in enumerate(cosines) if index != label - 2)
        losses.append(-math.log(own / (own + others)))
    assert method.loss(images, torch.tensor(labels))["ce"].item() == pytest.approx(sum(losses) / 3, rel=1e-4)


def test_whole_head_is_aligned_from_the_second_call_on() -> None:
    method = Ssiat(tiny_vit(), SsiatOptions(bottleneck=4, align_epochs=2, batch_size=4))
    for task in range(2):
        method.begin_task(2, torch.Generator().manual_seed(task))
        before = method.head.weight.detach().clone()
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(8, seed=task), labels)], torch.Generator().manual_seed(task))
        changed = (method.head.weight != before).any(dim=1)
        assert changed.tolist() == ([False, False] if task == 0 else [True] * 4)


def test_later_tasks_train_for_a_fraction_of_epochs() -> None:
    method = make_method(epochs=5)
    assert method.epochs == 5
    method.begin_task(1, torch.Generator())
    assert method.epochs == 3
