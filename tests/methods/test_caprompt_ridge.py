"""CAPrompt with a regression in closed form in place of the aligned head."""

from __future__ import annotations

import copy

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.caprompt import CAPrompt, CAPromptOptions
from caprompt.methods.components.ridge import RandomRidge


def learned(**options: object) -> CAPrompt:
    """Three tasks of two classes whose images differ in brightness, learned as the learner would have it."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, **options))  # type: ignore[arg-type]
    for task in range(3):
        method.begin_task(2, torch.Generator().manual_seed(task))
        batches = [shown([2 * task, 2 * task + 1] * 10, seed=task)]
        method.prepare(batches, torch.Generator().manual_seed(0))
        method.prompt.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(10 + task))
        method.consolidate(batches, torch.Generator().manual_seed(1))
    return method


def shown(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(100 + seed)
    noise = torch.randn(len(labels), 3, TINY.image_size, TINY.image_size, generator=chance)
    return noise * 0.3 + torch.tensor(labels).view(-1, 1, 1, 1) - 2.5, torch.tensor(labels)


def test_the_regression_is_over_all_images_as_both_passes_saw_them() -> None:
    """Replayed by hand: under the first prompt, and under the mixture of the prompts there were, by the regression there was.

    Learned task by task, it is as if all that had come at once, each image once a pass.
    """
    pairs, method = [], CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40))
    for task in range(3):
        method.begin_task(2, torch.Generator().manual_seed(task))
        images, labels = shown([2 * task, 2 * task + 1] * 10, seed=task)
        method.prepare([(images, labels)], torch.Generator())
        method.prompt.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(10 + task))
        before = copy.deepcopy(method)
        method.consolidate([(images, labels)], torch.Generator())
        stem, teacher = method.vit.stem(images), before
        first = method.features_under(stem, method.for_all(method.prompts[0], stem)).detach()
        if task == 0:  # nothing was known before: all weight is on the only prompt
            pairs += [(first, labels), (first, labels)]
            continue
        weights = teacher.sum_by_task((20 * teacher.ridge(first)).softmax(dim=1))  # type: ignore[misc]
        mixed = torch.einsum("bt,tlknd->lkbnd", weights, torch.stack(method.prompts))
        pairs += [(first, labels), (method.features_under(stem, mixed).detach(), labels)]
    assert method.ridge is not None
    expected = as_if_at_once(method.ridge, pairs)
    torch.testing.assert_close(method.ridge.ridge.gram, expected.ridge.gram, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(method.ridge.ridge.sums, expected.ridge.sums, rtol=1e-4, atol=1e-2)


def as_if_at_once(ridge: RandomRidge, pairs: list[tuple[Tensor, Tensor]]) -> RandomRidge:
    """A regression with the same projection that has seen these features alone."""
    fresh = RandomRidge(TINY.width, 40)
    fresh.grow(6, torch.Generator())
    fresh.load_state_dict({**ridge.state_dict(), "ridge.gram": torch.zeros(0, 0)})
    fresh.ridge.sums.zero_()
    fresh.learn(pairs, torch.Generator())
    return fresh


def test_the_regression_reads_every_pass() -> None:
    method, (images, _) = learned(cycles=3), shown([0, 1, 2, 3, 4, 5], seed=7)
    assert method.ridge is not None
    stem = method.vit.stem(images)
    first = 20 * method.ridge(method.features_under(stem, method.for_all(method.earlier[0], stem)))
    torch.testing.assert_close(method.first_logits(stem), first)
    second = 20 * method.ridge(method.features_under(stem, method.mix(method.next_weights(first))))
    third = 20 * method.ridge(method.features_under(stem, method.mix(method.next_weights(second))))
    torch.testing.assert_close(method.predict(images).logits, third)


def test_further_images_of_known_classes_reach_the_regression_once_a_pass() -> None:
    method = learned()
    assert method.ridge is not None
    before, counts = method.ridge.ridge.sums.clone(), method.statistics.count.clone()
    more, labels = shown([1, 1, 5], seed=9)
    seen = sum(method.ridge.expanded(features) for features in method.both_features(more))
    method.consolidate([(more, labels)], torch.Generator().manual_seed(0))
    expected = torch.zeros_like(before).index_add_(0, labels, seen)
    torch.testing.assert_close(method.ridge.ridge.sums - before, expected, rtol=1e-3, atol=1e-2)
    assert (method.statistics.count - counts).tolist() == [0, 2, 0, 0, 0, 1]


def test_where_a_regression_answers_the_constraint_looks_at_the_classes_of_the_task() -> None:
    method, (images, labels) = learned(), shown([4, 5, 4], seed=3)
    features = method.features_under(method.vit.stem(images), method.for_all(method.prompt, method.vit.stem(images)))
    among_task = method.head(features)[:, 4:].softmax(dim=1)
    expected = among_task[torch.arange(3), labels - 4]
    torch.testing.assert_close(method.probability(features, labels), expected)


def test_nothing_is_drawn_from_statistics() -> None:
    """The statistics are counts and means, and the head keeps what training gave it."""
    method = learned()
    head = method.head.weight.clone()
    method.consolidate([shown([1, 1, 5], seed=9)], torch.Generator().manual_seed(0))
    assert torch.equal(method.head.weight, head)
    assert {name for name, _ in method.statistics.named_buffers()} == {"count", "mean"}


def test_auto_stops_where_the_answer_is_sure_or_given_twice() -> None:
    method, (images, _) = (
        learned(cycles="auto", sure=0.6, settled=1e-9, max_cycles=4, ridge_scale=3.0),
        shown([0, 1, 2, 3, 4, 5] * 6, seed=7),
    )
    stem, answer = method.vit.stem(images), method.predict(images)
    with torch.no_grad():
        by_pass = [method.first_logits(stem)]
        for _ in range(3):
            by_pass.append(method.logits_under(stem, method.next_weights(by_pass[-1])))
    assert len(set(answer.passes.tolist())) > 1, "images should need different numbers of passes here"
    for row, passes in enumerate(answer.passes.tolist()):
        said = [int(logits[row].argmax()) for logits in by_pass]
        sure = [float(logits[row].softmax(dim=0).max()) >= 0.6 for logits in by_pass]
        final = [sure[cycle] or (cycle > 0 and said[cycle] == said[cycle - 1]) for cycle in range(3)] + [True]
        assert passes == final.index(True) + 1
        torch.testing.assert_close(answer.logits[row], by_pass[passes - 1][row], rtol=0, atol=1e-4)


def test_both_passes_are_those_of_an_answer() -> None:
    method, (images, _) = learned(cycles=2), shown([0, 3, 5], seed=7)
    assert method.ridge is not None
    first, second = method.both_features(images)
    torch.testing.assert_close(method.read(first), method.first_logits(method.vit.stem(images)))
    torch.testing.assert_close(method.read(second), method.predict(images).logits)
