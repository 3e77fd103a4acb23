from __future__ import annotations

import math

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.components.heads import cosines
from caprompt.methods.ease import Ease, EaseOptions, SubspaceHead, synthesize_means


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_trained_method(tasks: tuple[int, ...] = (2, 1, 2), **options: object) -> Ease:
    """Build a method with a non-zero adapter per task and four images per class."""
    method = Ease(tiny_vit(), EaseOptions(bottleneck=4, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.adapters[-1].up.data.normal_(0, 5, generator=torch.Generator().manual_seed(number))  # type: ignore[union-attr, operator]
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(len(labels), seed=number), labels)], torch.Generator())
    return method


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other) / (float(one.norm()) * float(other.norm()))


def test_synthesize_means_matches_manual_computation() -> None:
    """Use two references at cosines 0.6 and 0.8 from the old class in its own subspace."""
    old, references = torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0], [8.0, 6.0]])
    targets = torch.tensor([[1.0, 0.0], [0.0, 10.0]])
    share = math.exp(0.6) / (math.exp(0.6) + math.exp(0.8))
    torch.testing.assert_close(synthesize_means(old, references, targets), torch.tensor([[share, 10 * (1 - share)]]))


def test_old_means_are_synthesized_from_all_classes_seen_in_the_newer_subspace() -> None:
    method = make_trained_method((2, 1, 2))
    spaces = [space.mean for space in method.head.statistics]  # three times (5, D)
    assert [(space.count > 0).tolist() for space in method.head.statistics] == [
        [True] * 5,
        [False, False, True, True, True],
        [False, False, False, True, True],
    ]
    for old, own, new, references in ((0, 0, 1, (2, 3, 4)), (1, 0, 2, (3, 4)), (2, 1, 2, (3, 4))):
        alike = [math.exp(cosine(spaces[own][old], spaces[own][other])) for other in references]
        expected = sum(a / sum(alike) * spaces[new][other] for a, other in zip(alike, references, strict=True))
        torch.testing.assert_close(spaces[new][old], expected)


def test_means_are_means_of_features_under_each_adapter() -> None:
    method = make_trained_method((2, 1))
    features = method.vit(random_images(4, seed=1), method.branches()[0])  # the second task's images in the first subspace
    torch.testing.assert_close(method.head.statistics[0].mean[2], features.mean(dim=0))
    features = method.vit(random_images(4, seed=1), method.branches()[1])
    torch.testing.assert_close(method.head.statistics[1].mean[2], features.mean(dim=0))


def test_further_images_of_an_old_class_replace_its_synthesized_mean() -> None:
    method = make_trained_method((2, 1))
    synthesized = method.head.statistics[1].mean.clone()
    more = random_images(3, seed=9)
    method.consolidate([(more, torch.zeros(3, dtype=torch.long))], torch.Generator())
    first, second = method.head.statistics
    assert first.count.tolist() == [7, 4, 4]
    assert second.count.tolist() == [3, 0, 4]
    torch.testing.assert_close(second.mean[0], method.vit(more, method.branches()[1]).mean(dim=0))
    assert not torch.allclose(second.mean[1], synthesized[1]), "class 0 should now be a reference of class 1"


def test_logits_weight_the_own_subspace_by_one_and_others_by_alpha() -> None:
    method = make_trained_method((2, 1, 2), alpha=0.4, scale=3.0)
    images = random_images(3, seed=7)
    spaces = [space.mean for space in method.head.statistics]
    features = [method.vit(images, branches).detach() for branches in method.branches()]
    logits = method.predict(images).logits
    for label, own in enumerate((0, 0, 1, 2, 2)):
        parts = [cosine(features[space][1], spaces[space][label]) * (1 if space == own else 0.4 / 2) for space in range(3)]
        assert abs(float(logits[1, label]) - 3.0 * sum(parts)) < 1e-4
    assert method.predict(images).passes.tolist() == [3, 3, 3]


def test_raw_backbone_contributes_with_raw_weight() -> None:
    method = make_trained_method((2, 1), raw_weight=0.7, alpha=0.0)
    images = random_images(2, seed=7)
    raw, first, second = method.head.statistics
    assert (raw.count == 4).all()
    own = torch.cat([cosines(method.features(images)[1], first.mean[:2]), cosines(method.features(images)[2], second.mean[2:])], 1)
    expected = own + 0.7 * cosines(method.vit(images), raw.mean)
    torch.testing.assert_close(method.predict(images).logits, method.options.scale * expected)
    assert method.predict(images).passes.tolist() == [3, 3]
    restored = Ease(tiny_vit(), method.options)
    restored.restore([2, 1], method.state())
    assert torch.equal(restored.predict(images).logits, method.predict(images).logits)


def test_single_task_has_one_subspace() -> None:
    method = make_trained_method((2,))
    assert torch.equal(method.subspace_weights(), torch.ones(1, 2))


def test_only_newest_adapter_and_proxy_are_trained() -> None:
    method = make_trained_method((2, 3))
    images, labels = random_images(3), torch.tensor([2, 3, 4])
    expected = torch.nn.functional.cross_entropy(method.proxy(method.vit(images, method.branches()[1])), labels - 2)
    torch.testing.assert_close(method.loss(images, labels)["ce"], expected)
    trained = {name.rsplit(".", 1)[0] for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert trained == {"adapters.1", "proxy"}
    assert method.proxy.weight.shape == (3, TINY.width)
    assert method.trained_head is method.proxy


def test_scale_of_every_proxy_starts_at_proxy_scale() -> None:
    method = Ease(tiny_vit(), EaseOptions(bottleneck=4, proxy_scale=2.0))
    for number in range(2):
        method.begin_task(1, torch.Generator().manual_seed(number))
        assert float(method.proxy.scale.detach()) == 2.0  # type: ignore[union-attr]
        method.proxy.scale.data.fill_(5.0)  # type: ignore[union-attr]  # as if trained
    assert EaseOptions().proxy_scale == 1.0
    assert EaseOptions.complete_saved({})["proxy_scale"] == 10.0


def test_head_can_grow_before_its_first_subspace() -> None:
    head = SubspaceHead(4)
    head.grow(2, torch.Generator())
    head.add_subspace(2, torch.device("cpu"))
    head.grow(1, torch.Generator())
    assert head.statistics[0].mean.shape == (3, 4)
