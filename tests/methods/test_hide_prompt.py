from __future__ import annotations

import math

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.components.prefix import Prefix
from caprompt.methods.hide_prompt import HiDePrompt, HiDePromptOptions, contrastive_loss

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([3, 4, 5, 3, 4, 5])


def made(tasks: tuple[int, ...] = (2, 1, 3), **options: object) -> HiDePrompt:
    """A method with distinct random prompts, as if it had learned some tasks."""
    method = HiDePrompt(tiny_vit(), HiDePromptOptions(length=4, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompts.newest.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    return method


def learned(**options: object) -> HiDePrompt:
    """Statistics of all six classes, two images each; seen twice, since the first call has nothing to align with."""
    method = made(align_epochs=30, batch_size=4, **options)
    for seed in range(2):
        method.consolidate([(IMAGES, torch.arange(6)), (IMAGES + 0.1, torch.arange(6))], torch.Generator().manual_seed(seed))
    return method


def alone(method: HiDePrompt, image: Tensor, prompt: Tensor) -> Tensor:
    """One image's feature under one prompt, by itself."""
    features: Tensor = method.vit(image[None], Prefix.shared(prompt, method.layers, 1))
    return features


def test_a_tasks_prompt_is_mixed_with_the_mean_of_the_earlier_ones() -> None:
    """Three tasks by hand: P_0 = p_0, P_1 = .75 p_1 + .25 P_0, P_2 = .75 p_2 + .25 (P_0 + P_1) / 2."""
    method = made(mixture=0.25)
    p0, p1, p2 = (
        torch.empty_like(method.mixed_prompt()).normal_(0, 1, generator=torch.Generator().manual_seed(10 + t)) for t in range(3)
    )
    first = p0
    second = 0.75 * p1 + 0.25 * first
    torch.testing.assert_close(method.prompts.earlier, torch.stack([first, second]))
    torch.testing.assert_close(method.mixed_prompt(), 0.75 * p2 + 0.25 * (first + second) / 2)
    method.begin_task(1, torch.Generator())
    torch.testing.assert_close(method.prompts.newest[0], method.prompts.earlier[-1])  # a new task starts where the last one ended


def test_contrastive_loss_by_hand() -> None:
    """Rows a, b and one feature f: the mean over rows of -log of the row's own share."""
    a, b, f = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.5, 1.0])
    similar = [[float(x @ y) / 0.8 for y in (a, b, f)] for x in (a, b, f)]
    expected = sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(similar)) / 3
    found = contrastive_loss(f[None], torch.stack([a, b]), torch.tensor([True, True]))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_empty_centres_count_for_nothing_in_the_contrast() -> None:
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    centres = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    occupied = torch.tensor([True, False, True, False])
    found = contrastive_loss(features, centres, occupied)
    torch.testing.assert_close(found, contrastive_loss(features, centres[occupied], torch.ones(2, dtype=torch.bool)))
    found.backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["covariance", "multi-centroid"])
def test_the_losses_are_those_of_the_formula(kind: str) -> None:
    method = learned(replay=kind, contrast=0.3, centroids=2)
    features = torch.cat([alone(method, image, method.mixed_prompt()) for image in IMAGES])
    own = (features @ method.head.weight.T + method.head.bias)[:, 3:]
    losses = method.loss(IMAGES, LABELS)
    torch.testing.assert_close(losses["ce"], torch.nn.functional.cross_entropy(own, LABELS - 3))
    stored = method.statistics.mean[:3] if kind == "covariance" else method.statistics.centres()[0][:3].flatten(0, 1)
    rows = torch.cat([stored, features])
    expected = torch.nn.functional.cross_entropy(rows @ rows.T / 0.8, torch.arange(len(rows)))
    torch.testing.assert_close(losses["contrast"], 0.3 * expected)
    assert set(made(contrast=0).loss(IMAGES, LABELS)) == {"ce"}


def test_statistics_are_of_prompted_and_of_plain_features() -> None:
    method = learned(replay="mean")
    for label in range(6):
        prompt = [*method.prompts.earlier, method.mixed_prompt()][int(method.task_of_class[label])]
        pair = (IMAGES[label], IMAGES[label] + 0.1)
        torch.testing.assert_close(
            method.statistics.mean[label], torch.cat([alone(method, image, prompt) for image in pair]).mean(dim=0)
        )
        torch.testing.assert_close(method.plain_statistics.mean[label], method.vit(torch.stack(pair)).mean(dim=0))


def test_each_image_is_answered_under_the_prompt_of_the_task_found_for_it() -> None:
    method = learned()
    answer = method.predict(IMAGES)
    found = method.task_of_class[method.identity(method.vit(IMAGES)).argmax(dim=1)]
    assert len(set(found.tolist())) > 1, "images of several tasks are needed here"
    assert answer.task_weights.argmax(dim=1).tolist() == found.tolist()
    assert answer.passes.tolist() == [2] * 6
    for row, task in enumerate(found.tolist()):
        feature = alone(method, IMAGES[row], [*method.prompts.earlier, method.mixed_prompt()][task])
        torch.testing.assert_close(answer.logits[row : row + 1], method.head(feature))


def test_a_task_that_is_given_or_alone_needs_no_finding() -> None:
    method = learned()
    answer = method.predict(IMAGES[:2], true_tasks=torch.tensor([2, 0]))
    expected = torch.cat([alone(method, IMAGES[0], method.mixed_prompt()), alone(method, IMAGES[1], method.prompts.earlier[0])])
    torch.testing.assert_close(answer.logits, method.head(expected))
    assert answer.passes.tolist() == [1, 1]
    assert made((2,)).predict(IMAGES).passes.tolist() == [1] * 6


def test_alignment_moves_head_and_identity_from_the_second_call_on() -> None:
    method = made((2,), align_epochs=2, batch_size=4)
    head, rows = method.head.weight.detach().clone(), method.identity.rows.clone()
    method.consolidate([(IMAGES[:4], torch.tensor([0, 1, 0, 1]))], torch.Generator().manual_seed(0))
    assert torch.equal(method.head.weight, head)
    method.begin_task(1, torch.Generator().manual_seed(1))
    method.consolidate([(IMAGES[:4], torch.tensor([2, 2, 2, 2]))], torch.Generator().manual_seed(0))
    assert not torch.equal(method.head.weight[:2], head)
    assert not torch.equal(method.identity.rows[:2], rows)
