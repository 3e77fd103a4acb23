"""CAPrompt as a whole: what every task adds to its classifier."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import TINY, extract_both_passes, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import ViT
from caprompt.errors import OptionError
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions
from caprompt.methods.components.ridge import RandomRidge

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([3, 4, 5, 3, 4, 5])


def make_untrained(*sizes: int, **options: object) -> CAPrompt:
    """Return a method with a regression, and a random prompt for each task of so many classes."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(**{"length": 4, "projections": 60, **options}))  # type: ignore[arg-type]
    for number, num_classes in enumerate(sizes):
        method.begin_task(num_classes, torch.Generator().manual_seed(number))
        method.prompt.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    return method


def make_trained(**options: object) -> CAPrompt:
    """Learn three tasks of two classes whose images differ in brightness, with random prompts."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, **options))  # type: ignore[arg-type]
    for task in range(3):
        method.begin_task(2, torch.Generator().manual_seed(task))
        batches = [make_batch([2 * task, 2 * task + 1] * 10, seed=task)]
        method.prepare(batches, torch.Generator().manual_seed(0))
        method.prompt.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(10 + task))
        method.consolidate(batches, torch.Generator().manual_seed(1))
    return method


def make_batch(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(100 + seed)
    noise = torch.randn(len(labels), 3, TINY.image_size, TINY.image_size, generator=rng)
    return noise * 0.3 + torch.tensor(labels).view(-1, 1, 1, 1) - 2.5, torch.tensor(labels)


def test_regression_is_fitted_to_both_passes_over_all_images() -> None:
    """By hand: with the first prompt, and with prompts mixed by the regression, as of that task.

    Fitting task by task equals fitting to all of these at once.
    """
    pairs, method = [], CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, mirror=False, ridge_strength=0.1))
    for task in range(3):
        method.begin_task(2, torch.Generator().manual_seed(task))
        images, labels = make_batch([2 * task, 2 * task + 1] * 10, seed=task)
        method.prepare([(images, labels)], torch.Generator())
        method.prompt.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(10 + task))
        before = copy.deepcopy(method)
        method.consolidate([(images, labels)], torch.Generator())
        stem = method.vit.stem(images)
        first = method.extract_features(stem, method.expand_prompt(method.prompts[0], stem)).detach()
        if task == 0:  # all weight is on the only prompt
            pairs += [(first, labels), (first, labels)]
            continue
        assert before.ridge is not None
        before.ridge.partial_fit([(first, labels)], torch.Generator())
        weights = before.sum_by_task((20 * before.ridge(first)).softmax(dim=1))
        mixed = torch.einsum("bt,tlknd->lkbnd", weights, torch.stack(method.prompts))
        pairs += [(first, labels), (method.extract_features(stem, mixed).detach(), labels)]
    assert method.ridge is not None
    expected = fit_at_once(method.ridge, pairs)
    torch.testing.assert_close(method.ridge.ridge.gram, expected.ridge.gram, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(method.ridge.ridge.sums, expected.ridge.sums, rtol=1e-4, atol=1e-2)
    assert int(method.ridge.ridge.count) == 2 * 60  # two passes over twenty images of each task


def fit_at_once(ridge: RandomRidge, pairs: list[tuple[Tensor, Tensor]]) -> RandomRidge:
    """A regression with the same projection, fitted to these features only."""
    fresh = RandomRidge(TINY.width, 40, 0.1)
    fresh.grow(6, torch.Generator())
    fresh.load_state_dict({**ridge.state_dict(), "ridge.gram": torch.zeros(0, 0), "ridge.count": torch.tensor(0)})
    fresh.ridge.sums.zero_()
    fresh.partial_fit(pairs, torch.Generator())
    return fresh


class Croppable:
    """Batches whose images are darker the narrower the crop is."""

    def __init__(self, share: float = 0.875, short_side: int = 100) -> None:
        self.share, self.short_side, self.asked = share, short_side, list[float]()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = make_batch([0, 1] * 3, seed=0)
        return iter([(images * self.share, labels)])

    def crop(self, share: float) -> Croppable:
        self.asked.append(share)
        return Croppable(share)

    def measure_short_side(self) -> int:
        return self.short_side


def learn_croppable(num_images: int, **options: object) -> tuple[CAPrompt, Croppable]:
    settings = {"length": 4, "projections": 40, "readout_blocks": 1, "test_crop": 0.875, **options}
    method = CAPrompt(tiny_vit(), CAPromptOptions(**settings))  # type: ignore[arg-type]
    method.begin_task(2, torch.Generator().manual_seed(0))
    batches = Croppable()
    method.choose_effort(num_images, 2)
    method.choose_by_images(batches, torch.Generator())
    batches.asked.clear()
    method.prepare(batches, torch.Generator())
    method.consolidate(batches, torch.Generator())
    return method, batches


def test_regression_is_fitted_to_crops_of_few_images() -> None:
    """By hand: two passes over each image as at prediction, wider and narrower, and over the mirror images of these."""
    method, _ = learn_croppable(num_images=6)
    pairs = []
    for share in (0.875, 1.0, 0.7):
        for images, labels in Croppable(share):
            for view in (images, images.flip(-1)):
                stem = method.vit.stem(view)
                features = method.extract_features(stem, method.expand_prompt(method.prompt, stem)).detach()
                pairs += [(features, labels)] * 2  # all weight is on the only prompt
    assert method.ridge is not None
    expected = RandomRidge(TINY.width, 40, 0.1)
    expected.grow(2, torch.Generator())
    expected.load_state_dict({**method.ridge.state_dict(), "ridge.gram": torch.zeros(0, 0), "ridge.count": torch.tensor(0)})
    expected.ridge.sums.zero_()
    expected.partial_fit(pairs, torch.Generator())
    torch.testing.assert_close(method.ridge.ridge.gram, expected.ridge.gram, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(method.ridge.ridge.sums, expected.ridge.sums, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("num_images", "options", "shares"),
    [
        (99, {}, {1.0, 0.7}),
        (100, {}, set()),
        (100, {"crops": True}, {1.0, 0.7}),
        (6, {"crops": False}, set()),
        (6, {"test_crop": 1.0}, {0.8}),
        (6, {"ridge_strength": "held-out"}, set()),
        (6, {"exact_sums": True}, set()),
        (6, {"keep_features": True}, set()),
        (6, {"keep_features": True, "crops": True}, {1.0, 0.7}),
        (6, {"ridge_strength": 0.1}, {1.0, 0.7}),
    ],
    ids=[
        "few",
        "fifty of a class",
        "asked for",
        "refused",
        "whole",
        "held out",
        "exact sums",
        "kept",
        "kept, asked for",
        "strength",
    ],
)
def test_crops_are_made_of_few_images_unless_options_say_else(
    num_images: int, options: dict[str, object], shares: set[float]
) -> None:
    method, batches = learn_croppable(num_images, **options)
    assert {round(share, 6) for share in batches.asked} == shares
    assert method.ridge is not None
    if options != {"ridge_strength": "held-out"}:
        rows = 2 * 2 * (1 + len(shares))  # passes, mirror images, crops
        assert int(method.ridge.ridge.count) == 6 * (1 if method.selects_strength else rows)


@pytest.mark.parametrize(("short_side", "expected"), [(TINY.image_size // 2 - 1, 1.0), (TINY.image_size // 2, 0.875)])
def test_small_images_are_read_whole_and_a_saved_model_remembers_it(short_side: int, expected: float) -> None:
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40))
    assert method.input_options.test_crop == 0.875
    for task, side in enumerate((short_side, 1000 - short_side)):  # later images do not change it
        method.begin_task(2, torch.Generator().manual_seed(task))
        method.choose_by_images(Croppable(short_side=side), torch.Generator())
        assert method.input_options.test_crop == expected
    assert method.options.test_crop == "auto"
    loaded = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40))
    loaded.restore(method.task_sizes, method.state())
    assert loaded.input_options.test_crop == expected


def test_crop_that_was_asked_for_is_kept() -> None:
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, test_crop=0.5))
    method.begin_task(2, torch.Generator())
    method.choose_by_images(Croppable(short_side=1), torch.Generator())
    assert method.input_options.test_crop == 0.5


def test_blocks_are_selected_by_the_crop_that_is_read() -> None:
    method = CAPrompt(ViT(replace(TINY, depth=6)), CAPromptOptions(length=4, projections=40))
    method.begin_task(2, torch.Generator())
    batches = Croppable(short_side=1)
    method.choose_by_images(batches, torch.Generator())
    assert batches.asked == [1.0]


def test_fewer_images_are_scored_as_left_out_if_each_has_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.methods.caprompt.classifier.MAX_SCORED_ROWS", 36)
    for crops, expected in ((True, 3), (False, 6)):  # twelve and four rows for each of six images
        method, _ = learn_croppable(6, crops=crops)
        assert method.honest_scores is not None
        assert len(method.honest_scores.labels) == expected


def test_regression_classifies_every_pass() -> None:
    method, (images, _) = make_trained(cycles=3), make_batch([0, 1, 2, 3, 4, 5], seed=7)
    assert method.ridge is not None
    stem = method.vit.stem(images)
    first = 20 * method.ridge(method.extract_features(stem, method.expand_prompt(method.earlier[0], stem)))
    torch.testing.assert_close(method.compute_first_logits(stem), first)
    second = 20 * method.ridge(method.extract_features(stem, method.aggregate_prompts(method.compute_task_weights(first))))
    third = 20 * method.ridge(method.extract_features(stem, method.aggregate_prompts(method.compute_task_weights(second))))
    torch.testing.assert_close(method.predict(images).logits, third)


@pytest.mark.parametrize(("training_prompt", "passes"), [("own", 6), ("mixture", 8)])
def test_no_pass_over_the_images_is_run_twice(training_prompt: str, passes: int) -> None:
    """The head's start, both passes over both views, and the calibration; the mixture needs the first pass before training too."""
    method, batch = make_trained(training_prompt=training_prompt), make_batch([6, 7] * 10, seed=3)
    method.begin_task(2, torch.Generator().manual_seed(3))
    calls: list[object] = []
    method.vit.register_forward_hook(lambda *details: calls.append(details))
    method.prepare([batch], torch.Generator())
    method.consolidate([batch], torch.Generator())
    assert len(calls) == passes


def test_further_images_of_known_classes_are_added_once_per_pass() -> None:
    method = make_trained()
    assert method.ridge is not None
    before, counts = method.ridge.ridge.sums.clone(), method.statistics.count.clone()
    more, labels = make_batch([1, 1, 5], seed=9)
    views, after_first_pass = [more, more.flip(-1)], copy.deepcopy(method)
    assert after_first_pass.ridge is not None
    first = [method.extract_first_features(method.vit.stem(view)) for view in views]
    after_first_pass.ridge.partial_fit([(features, labels) for features in first], torch.Generator().manual_seed(0))
    second = [extract_both_passes(after_first_pass, view)[1] for view in views]
    hidden = sum(method.ridge.project(features) for features in [*first, *second])
    method.consolidate([(more, labels)], torch.Generator().manual_seed(0))
    expected = torch.zeros_like(before).index_add_(0, labels, hidden)
    torch.testing.assert_close(method.ridge.ridge.sums - before, expected, rtol=1e-3, atol=1e-2)
    assert (method.statistics.count - counts).tolist() == [0, 2, 0, 0, 0, 1]


def test_concave_constraint_uses_probabilities_among_the_classes_of_the_task() -> None:
    method, (images, labels) = make_trained(training_prompt="mixture", training_head="linear"), make_batch([4, 5, 4], seed=3)
    features = method.extract_features(method.vit.stem(images), method.expand_prompt(method.prompt, method.vit.stem(images)))
    among_task = method.head(features)[:, 4:].softmax(dim=1)
    expected = among_task[torch.arange(3), labels - 4]
    torch.testing.assert_close(method.compute_probability(features, labels), expected)


def test_head_is_not_aligned_with_statistics() -> None:
    """The statistics are counts and means only, and consolidation leaves the head unchanged."""
    method = make_trained()
    head = method.head.weight.clone()
    method.consolidate([make_batch([1, 1, 5], seed=9)], torch.Generator().manual_seed(0))
    assert torch.equal(method.head.weight, head)
    assert {name for name, _ in method.statistics.named_buffers()} == {"count", "mean"}


def test_auto_stops_at_a_confident_or_repeated_prediction() -> None:
    method, (images, _) = (
        make_trained(cycles="auto", sure=0.6, settled=1e-9, max_cycles=4, ridge_scale=3.0),
        make_batch([0, 1, 2, 3, 4, 5] * 6, seed=7),
    )
    stem, output = method.vit.stem(images), method.predict(images)
    with torch.no_grad():
        by_pass = [method.compute_first_logits(stem)]
        for _ in range(3):
            by_pass.append(method.compute_logits(stem, method.compute_task_weights(by_pass[-1])))
    assert len(set(output.passes.tolist())) > 1, "the images should need different numbers of passes"
    for row, passes in enumerate(output.passes.tolist()):
        predicted = [int(logits[row].argmax()) for logits in by_pass]
        confident = [float(logits[row].softmax(dim=0).max()) >= 0.6 for logits in by_pass]
        final = [confident[cycle] or (cycle > 0 and predicted[cycle] == predicted[cycle - 1]) for cycle in range(3)] + [True]
        assert passes == final.index(True) + 1
        torch.testing.assert_close(output.logits[row], by_pass[passes - 1][row], rtol=0, atol=1e-4)


def test_both_passes_equal_those_of_a_prediction() -> None:
    method, (images, _) = make_trained(cycles=2), make_batch([0, 3, 5], seed=7)
    assert method.ridge is not None
    first, second = extract_both_passes(method, images)
    torch.testing.assert_close(method.classify(first), method.compute_first_logits(method.vit.stem(images)))
    torch.testing.assert_close(method.classify(second), method.predict(images).logits)


def test_what_the_images_decided_is_said_with_its_reason() -> None:
    method = CAPrompt(ViT(replace(TINY, depth=6)), CAPromptOptions(length=4, projections=40))
    method.begin_task(2, torch.Generator())
    method.choose_effort(6, 2)
    assert method.describe_choices(6).endswith(
        "; fewer than 50 of a class, so crops of them are learned, too, and 33 % of what training changes is kept"
    )
    method.set_crop(reads_whole=True)
    method.set_num_blocks(3)
    assert method.describe_choices(6).endswith(
        "is kept; small, so they are read whole; by the error on images left out, the last 3 blocks are read"
    )
    given = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, epochs=1, batch_size=4, crops=True, test_crop=1.0))
    given.begin_task(2, torch.Generator())
    given.choose_effort(6, 2)
    assert given.describe_choices(6) == ""


def learn_strengths(counts: tuple[int, ...], **options: object) -> CAPrompt:
    """Learn a task of two classes for each count, with that many images of a class."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, **options))  # type: ignore[arg-type]
    for task, count in enumerate(counts):
        method.begin_task(2, torch.Generator().manual_seed(task))
        method.choose_effort(2 * count, 2)
        batches = [make_batch([2 * task, 2 * task + 1] * count, seed=task)]
        method.prepare(batches, torch.Generator().manual_seed(0))
        method.consolidate(batches, torch.Generator().manual_seed(1))
    return method


def get_lambda(method: CAPrompt, num_images: int) -> float:
    """Return the regression's lambda, relative to the squared length of all rows of an image."""
    assert method.ridge is not None
    return method.ridge.ridge.strength * num_images / float(method.ridge.ridge.gram.diagonal().double().sum())


@pytest.mark.parametrize(
    ("kept_change", "num_images", "expected"), [("auto", 20, 0.625), ("auto", 100, 1.0), (0.25, 100, 0.25), (1.0, 20, 1.0)]
)
def test_part_of_what_training_changed_is_kept(kept_change: float | str, num_images: int, expected: float) -> None:
    """In every task, and by a model that was saved and loaded between training and the end of the call."""
    options = CAPromptOptions(length=4, projections=40, kept_change=kept_change)  # type: ignore[arg-type]
    method, batches = CAPrompt(tiny_vit(), options), [make_batch([0, 1] * 10, seed=0)]
    for task in range(2):
        method.begin_task(2, torch.Generator().manual_seed(task))
        method.choose_effort(num_images, 2)
        method.prepare(batches, torch.Generator())
        before = method.prompt.detach().clone()
        method.prompt.data += torch.randn(before.shape, generator=torch.Generator().manual_seed(task))
        resumed, trained = CAPrompt(tiny_vit(), options), method.prompt.detach().clone()
        resumed.restore(method.task_sizes, method.state())
        resumed.choose_effort(num_images, 2)
        for each in (method, resumed):
            each.consolidate(batches, torch.Generator())
            torch.testing.assert_close(each.prompt, before + expected * (trained - before))


def test_prompt_stays_when_further_images_of_known_classes_are_learned() -> None:
    method = make_trained(kept_change=0.5)
    before = method.prompt.detach().clone()
    method.choose_effort(4, 2)
    method.consolidate([make_batch([0, 3] * 2, seed=9)], torch.Generator())
    assert torch.equal(method.prompt, before)


def test_strength_is_selected_by_the_images_of_all_calls_and_relative_to_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def prefer_strongest(views: list[Tensor], labels: Tensor) -> Tensor:
        seen.append(len(labels))
        gains = torch.zeros(3, 5, dtype=torch.float64)
        gains[:, 4] = 1.0
        return gains

    monkeypatch.setattr("caprompt.methods.caprompt.classifier.make_evidence", prefer_strongest)
    method = learn_strengths((5, 6))
    assert seen == [10, 12]
    assert method.strength_evidence[2, 4] == 2
    assert get_lambda(method, 22) == pytest.approx(1.0, rel=1e-4)
    loaded = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40))
    loaded.restore(method.task_sizes, method.state())
    loaded.refit()
    assert get_lambda(loaded, 22) == pytest.approx(1.0, rel=1e-4), "a saved model remembers what was selected"


def test_strength_without_evidence() -> None:
    assert get_lambda(learn_strengths((1, 4)), 10) == pytest.approx(0.1, rel=1e-4), "so few images say nothing"
    assert get_lambda(learn_strengths((50,)), 100) == pytest.approx(0.025, rel=1e-4), "many images are not asked"
    rows = 6 * 4  # two passes over two views of six images
    assert get_lambda(learn_strengths((3,), ridge_strength=0.2, crops=False), rows) == pytest.approx(0.2, rel=1e-4)


@pytest.mark.parametrize("options", [{"exact_sums": True}, {"keep_features": True}, {"ridge_strength": 0.3}])
def test_strength_is_not_selected_where_images_must_not_decide(options: dict[str, object]) -> None:
    method = learn_strengths((3, 3), **options)
    assert not hasattr(method, "strength_evidence")
    assert method.ridge is not None
    assert method.ridge.ridge.relative_strength == options.get("ridge_strength", 0.1)


def test_cosine_head_starts_at_the_means_of_new_classes() -> None:
    """With the prompt that training starts from; rows of earlier classes stay as they are."""
    method = make_untrained(2, 1, 3)
    before = method.head.weight.detach().clone()
    labels = torch.tensor([3, 5, 5, 3, 3, 5])  # no image of class 4
    method.prepare([(IMAGES[:4], labels[:4]), (IMAGES[4:], labels[4:])], torch.Generator())
    stem = method.vit.stem(IMAGES)
    features = method.extract_features(stem, method.expand_prompt(method.prompt, stem)).detach()
    for number in (3, 5):
        torch.testing.assert_close(method.head.weight[number], features[labels == number].mean(dim=0), rtol=1e-4, atol=1e-5)
    assert torch.equal(method.head.weight[[0, 1, 2, 4]], before[[0, 1, 2, 4]])
    assert method.head.weight.requires_grad


def fit_two_tasks(**options: Any) -> CAPrompt:
    """A method with a regression that was fitted to two tasks; nothing was trained."""
    method = make_untrained(**options)
    for number in range(2):
        rng = torch.Generator().manual_seed(number)
        method.begin_task(3, rng)
        method.prompt.data.normal_(0, 1, generator=rng)
        batches = [(IMAGES, LABELS - 3 * (number == 0))]
        method.choose_by_images(batches, rng)
        method.prepare(batches, rng)
        method.consolidate(batches, rng)
    return method


def test_blocks_before_the_last_are_read_in_the_first_pass_only() -> None:
    method = fit_two_tasks(readout_blocks=2)
    stem = method.vit.stem(IMAGES)
    first, second = extract_both_passes(method, IMAGES)
    assert first.shape == second.shape == (6, 2 * TINY.width)
    torch.testing.assert_close(first, method.vit(stem, method.build_adaptation(method.expand_prompt(method.prompts[0], stem)), 2))
    assert torch.equal(first[:, : TINY.width], second[:, : TINY.width])
    assert not torch.allclose(first[:, TINY.width :], second[:, TINY.width :])
    torch.testing.assert_close(method.predict(IMAGES).logits, method.classify(second))
    weights = method.compute_task_weights(method.classify(first))
    torch.testing.assert_close(method.compute_logits(stem, weights), method.classify(second), msg="without the first pass at hand")


def test_selected_blocks_are_saved_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.methods.caprompt.classifier.list_candidates", lambda depth: [1, 2])
    monkeypatch.setattr("caprompt.methods.caprompt.classifier.select_num_blocks", lambda *arguments: 2)
    method = fit_two_tasks()
    assert method.num_blocks == 2
    loaded = make_untrained(3, 3)
    loaded.load_state_dict(method.state_dict())
    assert loaded.num_blocks == 2
    assert torch.equal(loaded.predict(IMAGES).logits, method.predict(IMAGES).logits)


def test_regression_sees_mirrored_images() -> None:
    plain, both = fit_two_tasks(mirror=False, ridge_strength=0.1), fit_two_tasks(ridge_strength=0.1)
    assert plain.ridge is not None
    assert both.ridge is not None
    assert int(both.ridge.ridge.count) == 2 * int(plain.ridge.ridge.count)
    unmirrored = fit_two_tasks(flip=0.0, ridge_strength=0.1)
    assert unmirrored.ridge is not None
    assert torch.equal(unmirrored.ridge.ridge.gram, plain.ridge.ridge.gram), (
        "where training mirrors no images, neither does the regression"
    )


def test_more_blocks_than_the_backbone_has_are_refused() -> None:
    with pytest.raises(OptionError, match="readout_blocks"):
        make_untrained(2, readout_blocks=TINY.depth + 1)


def test_further_images_of_the_first_task_are_scored_among_all_classes() -> None:
    """They trained no prompt, so the regression without them is honest; one on a single class's images would be sure of it."""
    method = make_untrained()
    rng = torch.Generator().manual_seed(0)
    method.begin_task(3, rng)
    batches = [(IMAGES, LABELS - 3)]
    method.prepare(batches, rng)
    method.consolidate(batches, rng)
    method.consolidate([(IMAGES[:2].flip(2), torch.zeros(2, dtype=torch.long))], rng)
    assert method.honest_scores is not None
    assert (method.honest_scores.logits[:, 1:].abs() > 1e-6).all()
