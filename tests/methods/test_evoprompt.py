from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Adaptation
from caprompt.methods.evoprompt import EvoPrompt, EvoPromptOptions, composed_rows

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


def made(tasks: tuple[int, ...] = (2,), **options: object) -> EvoPrompt:
    method = EvoPrompt(tiny_vit(), EvoPromptOptions(length=2, hidden=3, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def test_tokens_are_generated_from_the_class_token_before_the_last_norm() -> None:
    method = made()
    query = method.query(method.vit.stem(IMAGES))
    torch.testing.assert_close(method.vit.last_norm(query), method.vit(IMAGES))
    assert not torch.allclose(query, method.vit(IMAGES))

    class ByHand(Adaptation):
        def tokens(self, layer: int, x: Tensor) -> Tensor:
            rows = [(method.up[layer] @ (method.down[layer] @ q).clamp_min(0)).reshape(2, TINY.width) for q in query]
            return torch.stack(rows)

    torch.testing.assert_close(method.logits(IMAGES), method.head(method.vit(IMAGES, ByHand())))


def test_new_head_rows_are_composed_group_by_group() -> None:
    """Two old classes, one new, eight features in two groups: against a loop in plain numbers."""
    generator = np.random.default_rng(0)
    new, old, rows = generator.normal(size=8), generator.normal(size=(2, 8)), generator.normal(size=(2, 8))
    expected = np.zeros(8)
    for part in (slice(0, 4), slice(4, 8)):
        cosines = [new[part] @ o[part] / (np.linalg.norm(new[part]) * np.linalg.norm(o[part])) for o in old]
        shares = [math.exp(c / 0.05) / sum(math.exp(d / 0.05) for d in cosines) for c in cosines]
        expected[part] = shares[0] * rows[0, part] + shares[1] * rows[1, part]
    found = composed_rows(torch.tensor(new)[None], torch.tensor(old), torch.tensor(rows))
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9)


def test_prepare_composes_the_rows_of_new_classes_only() -> None:
    method = made((2,))
    first = method.head.weight.detach().clone()
    method.prepare([(IMAGES, LABELS)], torch.Generator())
    assert torch.equal(method.head.weight, first), "nothing to compose the first task of"
    torch.testing.assert_close(method.prototypes.mean[0], method.vit(IMAGES[0::2]).mean(dim=0))
    method.begin_task(1, torch.Generator().manual_seed(1))
    method.prepare([(IMAGES + 1, torch.full((6,), 2))], torch.Generator())
    assert torch.equal(method.head.weight[:2], first)
    means = method.prototypes.mean
    torch.testing.assert_close(method.head.weight[2:].detach(), composed_rows(means[2:], means[:2], first))


def test_importance_is_the_mean_activation_on_images_classified_rightly() -> None:
    method = made()
    method.head.weight.data.mul_(30)
    right = (method.logits(IMAGES).argmax(dim=1) == LABELS).tolist()
    assert 0 < sum(right) < 6, "some but not all should be right here"
    hidden, outputs = method.activations(method.query(method.vit.stem(IMAGES)))
    down, up = method.measure_importance([(IMAGES[:4], LABELS[:4]), (IMAGES[4:], LABELS[4:])])
    kept = [i for i, ok in enumerate(right) if ok]
    torch.testing.assert_close(down, sum(hidden[:, i] for i in kept) / len(kept))
    torch.testing.assert_close(up, sum(outputs[:, i].clamp_min(0) for i in kept) / len(kept))


@pytest.mark.parametrize("route", ["matching", "exact"])
def test_fusion_is_that_of_the_formula(route: str) -> None:
    """One block's fusion, with plans from the library itself and the rest in NumPy."""
    ot = pytest.importorskip("ot")
    method = made(transport=route)
    generator = torch.Generator().manual_seed(3)
    for buffer in (method.reference_down, method.reference_up):
        buffer.normal_(generator=generator)
    for buffer in (method.importance_down, method.importance_up):
        buffer.uniform_(generator=generator)
    importance = (torch.rand(3, generator=generator), torch.rand(2 * TINY.width, generator=generator))
    before = {name: tensor.detach().double().numpy().copy() for name, tensor in method.state().items()}

    def columns(plan: np.ndarray) -> np.ndarray:
        return plan / plan.sum(axis=0)

    def transported(rows: np.ndarray, mass: np.ndarray, reference: np.ndarray) -> np.ndarray:
        cost = ot.dist(*(part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows, reference)))
        target = np.abs(reference).sum(axis=1)
        if route == "matching":
            mass, target = np.ones_like(mass), np.ones_like(target)
        return columns(ot.emd(mass / mass.sum(), target / target.sum(), cost))

    def fused(aligned: np.ndarray, reference: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        new = (new - new.min()) / (new.max() - new.min())
        return reference + (0.5 + 0.5 * (new - old))[:, None] * (aligned - reference)

    down, up = before["down"][1], before["up"][1]
    first = transported(down, np.abs(down).sum(axis=1), before["reference_down"][1])
    second = transported(up @ first, np.abs(up).sum(axis=1), before["reference_up"][1])
    new_down, new_up = first.T @ importance[0].double().numpy(), second.T @ importance[1].double().numpy()
    with torch.no_grad():
        found = method.fuse(1, *importance)
    np.testing.assert_allclose(found[0].numpy(), new_down, atol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), new_up, atol=1e-5)
    expected_down = fused(first.T @ down, before["reference_down"][1], new_down, before["importance_down"][1])
    expected_up = fused(second.T @ up @ first, before["reference_up"][1], new_up, before["importance_up"][1])
    np.testing.assert_allclose(method.down[1].detach().numpy(), expected_down, atol=1e-5)
    np.testing.assert_allclose(method.up[1].detach().numpy(), expected_up, atol=1e-5)
    np.testing.assert_array_equal(method.up[0].detach().numpy(), before["up"][0])


def test_the_first_call_fuses_nothing_and_the_next_one_does() -> None:
    method = made()
    trained = method.down.detach().clone()
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    assert torch.equal(method.down, trained)
    assert torch.equal(method.reference_down, trained)
    assert float(method.importance_down.max()) == 1
    method.down.data.add_(0.1)
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    moved = method.down - trained
    assert 0 < float(moved.detach().mean()) < 0.1, "between the reference and what was trained"
    assert torch.equal(method.reference_down, method.down)


def test_importance_is_the_maximum_over_tasks() -> None:
    method = made()
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    before = method.importance_up.clone()
    method.up.data.mul_(-1)
    method.consolidate([(IMAGES, LABELS)], torch.Generator())
    assert (method.importance_up >= before).all()
    assert (method.importance_up > before).any()
    assert float(method.importance_up.max()) <= 1


def test_cross_entropy_is_among_the_images_own_task() -> None:
    method = made((2, 1, 2))
    labels = torch.tensor([3, 4, 0, 1, 2, 3])
    logits = method.logits(IMAGES)
    spans = {0: (0, 2), 1: (0, 2), 2: (2, 3), 3: (3, 5), 4: (3, 5)}
    losses = [
        torch.logsumexp(row[slice(*spans[label])], dim=0) - row[label] for row, label in zip(logits, labels.tolist(), strict=True)
    ]
    torch.testing.assert_close(method.loss(IMAGES, labels)["ce"], torch.stack(losses).mean())
