from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TINY, quick_options, squares, tiny_vit
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.callbacks.events import EpochEnded, Event
from caprompt.methods.moal import Moal, MoalOptions, borrow_features, calibrate_means


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_method(**options: object) -> Moal:
    """Build a method that has learned one task of two classes and begun another of two."""
    method = Moal(tiny_vit(), MoalOptions(**{"projections": 50, "bottleneck": 4, "batch_size": 4, **options}))  # type: ignore[arg-type]
    method.begin_task(2, torch.Generator().manual_seed(0))
    method.consolidate([(random_images(8), torch.arange(8) % 2)], torch.Generator().manual_seed(0))
    method.begin_task(2, torch.Generator().manual_seed(1))
    return method


def perturb_adapter(method: Moal, seed: int = 4) -> Tensor:
    """Change the adapter as training would; return its flattened weights."""
    method.adapter.up.data.normal_(0, 3, generator=torch.Generator().manual_seed(seed))
    return method.flatten_adapter()


def test_average_is_updated_once_per_epoch() -> None:
    method = make_method(average=0.9)
    start = method.flatten_adapter()
    batches = [(random_images(4), torch.tensor([2, 3, 2, 3])), (random_images(2), torch.tensor([2, 3]))]
    method.prepare(batches, torch.Generator())
    assert method.epoch_steps.item() == 2
    first, second = perturb_adapter(method, seed=1), None
    for step in range(4):
        method.loss(*batches[step % 2])
        if step < 2:
            assert torch.equal(method.mean_adapter, start), "no epoch has ended"
        if step == 1:
            first = perturb_adapter(method, seed=2)  # the weights at the end of the first epoch
        if step == 3:
            second = perturb_adapter(method, seed=3)
    after_first = 0.9 * start + 0.1 * first
    torch.testing.assert_close(method.mean_adapter, after_first)
    method.take_average()
    assert second is not None
    torch.testing.assert_close(method.flatten_adapter(), 0.9 * after_first + 0.1 * second)
    assert method.steps.item() == 0


def test_adapter_of_the_first_task_is_taken_as_it_is_trained() -> None:
    method = Moal(tiny_vit(), MoalOptions(projections=50, bottleneck=4))
    method.begin_task(2, torch.Generator().manual_seed(0))
    images, labels = random_images(4), torch.tensor([0, 1, 0, 1])
    method.prepare([(images, labels)], torch.Generator())
    method.loss(images, labels)
    trained = perturb_adapter(method)
    method.consolidate([(images, labels)], torch.Generator().manual_seed(0))
    assert torch.equal(method.flatten_adapter(), trained)


@pytest.mark.parametrize("average", [1.0, 0.0])
def test_average_of_1_freezes_and_of_0_follows_the_adapter(average: float, backbone: Path) -> None:
    options = {**quick_options("moal"), "average": average, "epochs": 2, "batch_size": 4}
    model = ContinualClassifier("moal", backbone, device="cpu", **options)
    model.learn(squares(("red", "green")))
    before, trained = model.method.state(), {}

    def remember(event: Event) -> None:
        if isinstance(event, EpochEnded):
            trained["up"] = model.method.adapter.up.detach().clone()  # type: ignore[union-attr, operator]

    before = {name: tensor.clone() for name, tensor in before.items()}
    model.learn(squares(("blue", "yellow", "cyan")), callbacks=remember)  # 15 images: an epoch has 4 steps
    expected = before["adapter.up"] if average else trained["up"]
    torch.testing.assert_close(model.method.state()["adapter.up"], expected)
    assert not torch.equal(before["adapter.up"], trained["up"])


def test_proxy_discriminates_among_all_classes() -> None:
    method = make_method()
    images, labels = random_images(3), torch.tensor([2, 3, 3])
    logits = method.proxy(method.features(images))
    assert logits.shape == (3, 4)
    torch.testing.assert_close(method.loss(images, labels)["ce"], torch.nn.functional.cross_entropy(logits, labels))
    assert method.trained_head is method.proxy


def test_calibration_recovers_a_linear_map() -> None:
    generator = torch.Generator().manual_seed(0)
    before, means = torch.randn(200, 6, generator=generator), torch.randn(3, 6, generator=generator) + 2
    matrix, shift = torch.randn(6, 6, generator=generator), torch.randn(6, generator=generator)
    calibrated = calibrate_means(before, before @ matrix + shift, means, generator)
    torch.testing.assert_close(calibrated, means @ matrix + shift, rtol=1e-3, atol=1e-3)


def test_calibration_of_a_random_change_or_of_few_images_is_the_mean_change() -> None:
    generator = torch.Generator().manual_seed(0)
    before, means = torch.randn(60, 6, generator=generator), torch.randn(3, 6, generator=generator)
    change = torch.randn(60, 6, generator=generator)
    calibrated = calibrate_means(before, before + change, means, generator)
    assert (calibrated - means - change.mean(dim=0)).norm() < 0.1 * means.norm()
    few = calibrate_means(before[:5], before[:5] + change[:5], means, generator)
    torch.testing.assert_close(few, means + change[:5].mean(dim=0))


def test_borrowed_features_have_the_mean_of_the_old_and_the_spread_of_the_nearest_new_class() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.randn(10, 3, generator=generator), torch.tensor([2, 3] * 5)
    features[labels == 2] += torch.tensor([9.0, 0.0, 0.0])
    features[labels == 3] += torch.tensor([0.0, 9.0, 0.0])
    new_means = torch.stack([features[labels == label].mean(dim=0) for label in (2, 3)])
    means = torch.cat([torch.tensor([[1.0, 8.0, 0.0], [5.0, 1.0, 1.0]]), new_means])
    borrowed = list(borrow_features(features, labels, means, torch.tensor([True, True, False, False])))
    for (part, targets), label, donor in zip(borrowed, (0, 1), (3, 2), strict=True):
        assert targets.tolist() == [label] * 5
        torch.testing.assert_close(part.mean(dim=0), means[label])
        own = features[labels == donor]
        torch.testing.assert_close(part - part.mean(dim=0), own - own.mean(dim=0), rtol=1e-4, atol=1e-5)


def test_nothing_is_borrowed_without_new_classes() -> None:
    features, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])
    assert list(borrow_features(features, labels, torch.randn(2, 3), torch.tensor([True, True]))) == []


def test_old_means_are_calibrated_once_and_misclassified_features_are_reviewed() -> None:
    method = make_method()
    images, labels = random_images(20, seed=1), torch.tensor([2, 3] * 10)
    old = method.statistics.mean[:2].clone()
    u = method.features(images).detach()
    perturb_adapter(method)
    v = method.features(images).detach()
    method.consolidate([(images[:12], labels[:12]), (images[12:], labels[12:])], torch.Generator().manual_seed(2))
    expected = calibrate_means(u, v, old, torch.Generator().manual_seed(2))
    torch.testing.assert_close(method.statistics.mean[:2], expected, rtol=1e-3, atol=1e-3)
    assert (expected - old).norm() > 0.1
    torch.testing.assert_close(method.statistics.mean[2], v[labels == 2].mean(dim=0))
    means = method.statistics.mean.clone()
    method.consolidate([(random_images(3, seed=3), torch.zeros(3, dtype=torch.long))], torch.Generator().manual_seed(3))
    assert torch.equal(method.statistics.mean[1:], means[1:]), "without training there is no drift"


def test_only_what_the_regression_misclassifies_is_added_again() -> None:
    method, plain = make_method(), make_method(ruminate=False)
    images, labels = random_images(20, seed=1), torch.tensor([2, 3] * 10)
    for each in (method, plain):
        perturb_adapter(each)
        each.consolidate([(images, labels)], torch.Generator().manual_seed(2))
    features = plain.features(images).detach()
    is_old = torch.tensor([True, True, False, False])
    gram = plain.head.ridge.gram.clone()
    num_wrong = 0
    for part, own in [(features, labels), *borrow_features(features, labels, plain.statistics.mean, is_old)]:
        wrong = plain.head(part).argmax(dim=1) != own
        hidden = plain.head.project(part[wrong])
        gram += hidden.T @ hidden
        num_wrong += int(wrong.sum())
    assert num_wrong > 0
    torch.testing.assert_close(method.head.ridge.gram, gram, rtol=1e-4, atol=1e-2)


def test_average_survives_a_checkpoint_within_a_task() -> None:
    method = make_method()
    batch = (random_images(4), torch.tensor([2, 3, 2, 3]))
    method.prepare([batch], torch.Generator())
    method.loss(*batch)
    perturb_adapter(method)
    resumed = Moal(tiny_vit(), method.options)
    resumed.restore([2, 2], {name: tensor.clone() for name, tensor in method.state().items()})
    for each in (method, resumed):
        each.loss(*batch)
        each.consolidate([batch], torch.Generator().manual_seed(1))
    assert torch.equal(resumed.flatten_adapter(), method.flatten_adapter())
    assert torch.equal(resumed.head.ridge.weight, method.head.ridge.weight)
