"""CAPrompt: options, constraints, and behavior beyond the exact values of the fixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, extract_both_passes, tiny_vit
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.backbones.vit import Stem
from caprompt.errors import OptionError
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions, concave_gap, linear_loss
from caprompt.methods.components.effort import Effort
from caprompt.methods.components.prefix import PLACES, Prefix


def make_method(tasks: tuple[int, ...] = (2, 1, 3), **options: object) -> CAPrompt:
    """A method with a distinct random prompt for each task."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(**{"length": 4, "classifier": "aligned", **options}))  # type: ignore[arg-type]
    for number, num_classes in enumerate(tasks):
        method.begin_task(num_classes, torch.Generator().manual_seed(number))
        method.prompt.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    method.head.weight.data.mul_(4)
    return method


def make_images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))


LABELS = torch.tensor([3, 4, 5, 3, 4, 5])


def count_passes(method: CAPrompt, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every forward pass will append its number of images."""
    passes: list[int] = []
    run_blocks = method.vit.run_blocks

    def counting(stem: Stem, *arguments: Any, **keywords: Any) -> Tensor:
        passes.append(len(stem.tokens) * stem.times)
        return run_blocks(stem, *arguments, **keywords)

    monkeypatch.setattr(method.vit, "run_blocks", counting)
    return passes


def with_options(method: CAPrompt, **options: object) -> CAPrompt:
    method.options = method.options.model_copy(update=options)
    return method


def test_new_prompt_is_a_copy_of_the_previous_one() -> None:
    method = make_method()
    last = method.prompts[-1].detach().clone()
    method.begin_task(1, torch.Generator())
    assert torch.equal(method.prompts[-1], last)
    assert torch.equal(method.earlier[-1], last)
    assert method.prompt.requires_grad
    assert not method.earlier.requires_grad


@pytest.mark.parametrize(("init", "low", "high"), [("uniform", 0.5, 0.65), ("normal", 0.015, 0.025)])
def test_initialization_of_the_first_prompt(init: str, low: float, high: float) -> None:
    method = CAPrompt(tiny_vit(), CAPromptOptions(init=init, classifier="aligned"))  # type: ignore[arg-type]
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.prompts[0].shape == (TINY.depth, 2, 5, TINY.width)
    assert low < float(method.prompts[0].detach().std()) < high


def test_prompts_are_mixed_per_image() -> None:
    method = make_method()
    weights = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    rows = method.aggregate_prompts(weights)  # (L, 2, B, n, D)
    torch.testing.assert_close(rows[:, :, 0], 0.2 * method.prompts[0] + 0.3 * method.prompts[1] + 0.5 * method.prompts[2])
    torch.testing.assert_close(rows[:, :, 1], method.prompts[0])


def test_task_weights_are_sums_over_tasks_of_unequal_size() -> None:
    method = make_method((2, 1, 3))
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.1, 0.1, 0.2]]))
    torch.testing.assert_close(method.compute_task_weights(logits), torch.tensor([[0.3, 0.3, 0.4]]))


def test_query_pass_uses_no_prompt() -> None:
    method = make_method(first_pass="query")
    torch.testing.assert_close(method.compute_first_logits(method.vit.stem(make_images())), method.head(method.vit(make_images())))
    assert not torch.allclose(
        method.compute_first_logits(method.vit.stem(make_images())),
        with_options(method, first_pass="prompted").compute_first_logits(method.vit.stem(make_images())),
    )


def test_each_cycle_applies_the_same_map() -> None:
    method = make_method()
    two = method.predict(make_images())
    three = with_options(method, cycles=3).predict(make_images())
    weights = method.compute_task_weights(two.logits)
    torch.testing.assert_close(three.task_weights, weights)
    torch.testing.assert_close(three.logits, method.compute_logits(method.vit.stem(make_images()), weights))


def test_auto_stops_each_image_when_its_weights_have_converged() -> None:
    method = make_method(cycles="auto", settled=0.05, max_cycles=6)
    output = method.predict(make_images(30))
    assert len(set(output.passes.tolist())) > 1, "the images should need different numbers of passes"
    for row in range(30):
        fixed = with_options(make_method(), cycles=int(output.passes[row])).predict(make_images(30)[row : row + 1])
        torch.testing.assert_close(output.logits[row : row + 1], fixed.logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(output.task_weights[row : row + 1], fixed.task_weights, rtol=0, atol=1e-5)
        if output.passes[row] < 6:
            change = method.compute_task_weights(fixed.logits) - fixed.task_weights
            assert change.abs().max() < 0.05


def test_auto_with_one_task_needs_one_pass() -> None:
    assert make_method((3,), cycles="auto").predict(make_images()).passes.tolist() == [1] * 6


def test_auto_never_predicts_from_the_query_pass() -> None:
    for options in ({"first_pass": "query"}, {"aggregation": False}):
        assert make_method((3,), cycles="auto", **options).predict(make_images()).passes.tolist() == [2] * 6


def test_without_aggregation_only_the_predicted_tasks_prompt_is_used() -> None:
    method = make_method(aggregation=False)
    output = method.predict(make_images())
    query = method.sum_by_task(method.head(method.vit(make_images())).softmax(dim=1))
    assert output.task_weights.argmax(dim=1).tolist() == query.argmax(dim=1).tolist()
    assert set(output.task_weights.flatten().tolist()) == {0.0, 1.0}
    assert set(method.loss(make_images(), LABELS)) == {"ce"}


def test_true_tasks_select_the_prompt() -> None:
    method = make_method()
    output = method.predict(make_images(2), true_tasks=torch.tensor([1, 2]))
    weights = torch.tensor([[0.0, 1, 0], [0, 0, 1]])
    torch.testing.assert_close(output.logits, method.compute_logits(method.vit.stem(make_images(2)), weights))


@pytest.mark.parametrize(
    ("tasks", "options", "terms"),
    [
        ((6,), {}, {"ce"}),
        ((3, 3), {}, {"ce", "concave"}),
        ((2, 1, 3), {}, {"ce", "concave", "linear"}),
        ((2, 1, 3), {"alpha": 0}, {"ce", "linear"}),
        ((2, 1, 3), {"beta": 0}, {"ce", "concave"}),
        ((2, 1, 3), {"alpha": 0, "beta": 0}, {"ce"}),
    ],
)
def test_loss_terms(tasks: tuple[int, ...], options: dict[str, float], terms: set[str]) -> None:
    assert set(make_method(tasks, **options).loss(make_images(), LABELS)) == terms


def test_own_prompt_is_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass with the newest prompt: neither a first pass nor the prompts of earlier tasks."""
    method = make_method(training_prompt="own")
    rows = method.prompt.unsqueeze(2).expand(-1, -1, 6, -1, -1)
    logits = method.head(method.vit(make_images(), Prefix(rows, method.layers)))[:, 3:]
    passes = count_passes(method, monkeypatch)
    losses = method.loss(make_images(), LABELS)
    assert passes == [6]
    assert set(losses) == {"ce"}
    torch.testing.assert_close(losses["ce"], F.cross_entropy(logits, LABELS - 3))
    method.earlier.fill_(1.0)
    assert torch.equal(method.loss(make_images(), LABELS)["ce"], losses["ce"])
    with torch.no_grad():
        method.prompt.mul_(2)
    assert not torch.allclose(method.loss(make_images(), LABELS)["ce"], losses["ce"])


def test_mixture_is_trained_after_a_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make_method(training_prompt="mixture", alpha=0, beta=0)
    passes = count_passes(method, monkeypatch)
    before = method.loss(make_images(), LABELS)["ce"]
    assert passes == [6, 6]
    method.earlier.fill_(1.0)
    assert not torch.allclose(method.loss(make_images(), LABELS)["ce"], before)


def test_concave_constraint_adds_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make_method()
    passes = count_passes(method, monkeypatch)
    method.loss(make_images(), LABELS)
    assert passes == [6, 6, 12], "the mixed and the newest prompt share a pass"


def test_disabling_the_concave_constraint_leaves_the_cross_entropy_unchanged() -> None:
    enabled, disabled = make_method().loss(make_images(), LABELS), make_method(alpha=0).loss(make_images(), LABELS)
    torch.testing.assert_close(enabled["ce"], disabled["ce"])


def test_head_gets_gradients_from_the_cross_entropy_only_and_in_its_new_rows_only() -> None:
    method = make_method()
    method.loss(make_images(), LABELS)["concave"].backward()
    assert method.head.weight.grad is None
    assert method.prompt.grad is not None
    method.loss(make_images(), LABELS)["ce"].backward()
    assert method.head.weight.grad is not None
    assert method.head.weight.grad[:3].abs().max() == 0
    assert method.head.weight.grad[3:].abs().max() > 0


def test_confident_images_do_not_divide_by_zero() -> None:
    """An image with all its weight on the new task has no weight on the earlier prompts."""
    method = make_method()
    method.head.bias.data[3:] += 1000
    losses = method.loss(make_images(), LABELS)
    torch.stack(list(losses.values())).sum().backward()
    assert method.prompt.grad is not None
    assert method.prompt.grad.isfinite().all()


def test_layers_can_be_selected() -> None:
    method = make_method(layers=(1,))
    assert method.prompts[0].shape[0] == 1
    assert CAPromptOptions(layers="0-8").layers == tuple(range(9))  # type: ignore[arg-type]
    assert CAPromptOptions(layers=3).layers == (3,)  # type: ignore[arg-type]


def test_default_prompts_have_scales_and_shifts_that_start_at_zero() -> None:
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40))
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.prompt.shape == (TINY.depth, 2, 2 + len(PLACES), TINY.width)
    assert not method.prompt[:, :, 2:].any()
    assert method.prompt[:, :, :2].all()
    plain = CAPrompt(tiny_vit(), CAPromptOptions(length=4, projections=40, modulation=0))
    plain.begin_task(2, torch.Generator().manual_seed(0))
    assert torch.equal(plain.prompt, method.prompt[:, :, :2])


def test_modulation_is_a_factor_on_scales_and_shifts() -> None:
    """Doubled scales and shifts with half the factor are the same."""
    one, other = (make_method(classifier="ridge", projections=40, modulation=factor) for factor in (0.3, 0.15))
    with torch.no_grad():
        other.prompt[:, :, 2:] *= 2
    features = [
        method.extract_features(stem, method.expand_prompt(method.prompt, stem))
        for method, stem in ((method, method.vit.stem(make_images())) for method in (one, other))
    ]
    torch.testing.assert_close(*features)
    with torch.no_grad():
        other.prompt[:, :, 2:] = 0
    stem = other.vit.stem(make_images())
    assert not torch.allclose(features[0], other.extract_features(stem, other.expand_prompt(other.prompt, stem)), atol=0.01)


def test_papers_classifier_comes_with_the_papers_recipe() -> None:
    expected = {
        "epochs": 5,
        "batch_size": 24,
        "learning_rate": 0.01,
        "training_prompt": "mixture",
        "training_head": "linear",
        "alpha": 5.0,
        "beta": 0.2,
        "modulation": 0.0,
    }
    options = CAPromptOptions(classifier="aligned")
    assert {name: getattr(options, name) for name in expected} == expected
    with_others = CAPromptOptions(classifier="aligned", epochs=7, alpha=1.0, modulation=0.3)
    assert (with_others.epochs, with_others.alpha, with_others.modulation) == (7, 1.0, 0.3)
    assert (with_others.beta, with_others.training_prompt) == (0.2, "mixture")


def test_papers_classifier_can_train_a_tasks_own_prompt() -> None:
    """Then the constraints, which nobody asked for, are off."""
    options = CAPromptOptions(classifier="aligned", training_prompt="own")
    assert (options.training_prompt, options.training_head) == ("own", "linear")
    assert (options.alpha, options.beta, options.epochs) == (0.0, 0.0, 5)


@pytest.mark.parametrize("option", ["alpha", "beta"])
def test_constraints_need_the_mixture_and_a_linear_head(option: str) -> None:
    for other in (
        {"training_prompt": "own"},
        {"training_head": "cosine"},
        {"classifier": "aligned", "training_prompt": "own"},
    ):
        with pytest.raises(OptionError, match=f"option '{option}' of caprompt cannot be '0.5': .*needs training_prompt=mixture"):
            ContinualClassifier(**{option: 0.5}, **other)  # type: ignore[arg-type]
    for other in ({}, {"training_prompt": "mixture"}, {"classifier": "aligned"}):  # a constraint alone asks for what it needs
        options = CAPromptOptions(**{option: 0.5}, **other)  # type: ignore[arg-type]
        assert (options.training_prompt, options.training_head, getattr(options, option)) == ("mixture", "linear", 0.5)
    assert CAPromptOptions(**{option: 0.0}).training_prompt == "own"  # type: ignore[arg-type]


def test_papers_classifier_has_no_cosine_head() -> None:
    with pytest.raises(OptionError, match="leave out training_head"):
        ContinualClassifier(classifier="aligned", training_head="cosine", alpha=0, beta=0)


def test_models_saved_before_the_options_existed_keep_their_behavior() -> None:
    """They have all options of their time, among them alpha and beta."""
    added = {"training_prompt", "training_head", "modulation", "ridge_strength"}
    saved = {name: value for name, value in CAPromptOptions().model_dump().items() if name not in added}
    saved |= {"epochs": 5, "batch_size": 24, "learning_rate": 0.01, "alpha": 5.0, "beta": 0.2}
    options = CAPromptOptions.model_validate(CAPromptOptions.complete_saved(saved))
    assert (options.training_prompt, options.training_head) == ("mixture", "linear")
    assert (options.modulation, options.ridge_strength) == (0.0, "held-out")
    assert (options.epochs, options.alpha, options.beta) == (5, 5.0, 0.2)
    current = CAPromptOptions()
    assert CAPromptOptions.model_validate(CAPromptOptions.complete_saved(current.model_dump())) == current


def test_cosine_head_starts_at_the_means_of_new_classes() -> None:
    """With the prompt that training starts from; rows of earlier classes stay as they are."""
    method = make_method((2, 1, 3), classifier="ridge", projections=40)
    before = method.head.weight.detach().clone()
    labels = torch.tensor([3, 5, 5, 3, 3, 5])  # no image of class 4
    method.prepare([(make_images(6)[:4], labels[:4]), (make_images(6)[4:], labels[4:])], torch.Generator())
    stem = method.vit.stem(make_images(6))
    features = method.extract_features(stem, method.expand_prompt(method.prompt, stem)).detach()
    for number in (3, 5):
        torch.testing.assert_close(method.head.weight[number], features[labels == number].mean(dim=0), rtol=1e-4, atol=1e-5)
    assert torch.equal(method.head.weight[[0, 1, 2, 4]], before[[0, 1, 2, 4]])
    assert method.head.weight.requires_grad


@pytest.mark.parametrize(("width", "rate"), [(192, 0.02), (384, 0.01), (768, 0.005)])
def test_wider_backbones_have_smaller_learning_rates(width: int, rate: float) -> None:
    vit = tiny_vit(config=replace(TINY, width=width))
    method = CAPrompt(vit, CAPromptOptions(projections=10))
    method.choose_effort(280, 2)
    assert method.effort == Effort(20, 16, pytest.approx(rate), chosen=True)
    assert method.epochs == 20
    assert CAPrompt(vit, CAPromptOptions(projections=10, learning_rate=0.3)).effort.learning_rate == 0.3


def test_options_that_affect_only_prediction_can_change_on_a_trained_model() -> None:
    assert {"cycles", "max_cycles", "settled", "ridge_scale", "precision"} <= CAPromptOptions.at_prediction
    assert not {"classifier", "projections", "first_pass", "alpha"} & CAPromptOptions.at_prediction


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("classifier", "knn"),
        ("ridge_scale", 0),
        ("ridge_strength", 0),
        ("ridge_strength", "best"),
        ("projections", 0),
        ("cycles", 0),
        ("cycles", "often"),
        ("first_pass", "equal"),
        ("training_prompt", "all"),
        ("modulation", -1),
        ("epochs", "many"),
    ],
)
def test_invalid_values_are_reported_with_their_option(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"option '{option}'"):
        ContinualClassifier(**{option: value})  # type: ignore[arg-type]


def test_released_protocol_requires_the_aligned_classifier() -> None:
    with pytest.raises(OptionError, match="only classifier 'aligned'"):
        ContinualClassifier(protocol="released")
    assert CAPromptOptions(protocol="released", classifier="aligned").protocol == "released"


def test_concave_gap_is_jensens_inequality() -> None:
    """The gap is never positive for a concave prediction, never negative for a convex one."""
    p, a, b = torch.rand(3, 100, generator=torch.Generator().manual_seed(1))
    mixed = p * a + (1 - p) * b
    assert (concave_gap(p, a.sqrt(), b.sqrt(), mixed.sqrt()) <= 1e-6).all()
    assert (concave_gap(p, a.square(), b.square(), mixed.square()) >= -1e-6).all()


def test_linear_loss_is_zero_on_a_line_and_two_backwards() -> None:
    first, step = torch.randn(2, TINY.depth, 2, 2, TINY.width, generator=torch.Generator().manual_seed(2))
    assert float(linear_loss(first + 3 * step, first + step, first)) == pytest.approx(0, abs=1e-6)
    assert float(linear_loss(first - step, first + step, first)) == pytest.approx(2, abs=1e-6)


def fit_two_tasks(**options: Any) -> CAPrompt:
    """A method with a regression that was fitted to two tasks; nothing was trained."""
    method = make_method((), classifier="ridge", projections=60, **options)
    for number in range(2):
        rng = torch.Generator().manual_seed(number)
        method.begin_task(3, rng)
        method.prompt.data.normal_(0, 1, generator=rng)
        batches = [(make_images(), LABELS - 3 * (number == 0))]
        method.choose_by_images(batches, rng)
        method.prepare(batches, rng)
        method.consolidate(batches, rng)
    return method


def test_blocks_before_the_last_are_read_in_the_first_pass_only() -> None:
    method = fit_two_tasks(readout_blocks=2)
    stem = method.vit.stem(make_images())
    first, second = extract_both_passes(method, make_images())
    assert first.shape == second.shape == (6, 2 * TINY.width)
    torch.testing.assert_close(first, method.vit(stem, method.build_adaptation(method.expand_prompt(method.prompts[0], stem)), 2))
    assert torch.equal(first[:, : TINY.width], second[:, : TINY.width])
    assert not torch.allclose(first[:, TINY.width :], second[:, TINY.width :])
    torch.testing.assert_close(method.predict(make_images()).logits, method.classify(second))
    weights = method.compute_task_weights(method.classify(first))
    torch.testing.assert_close(method.compute_logits(stem, weights), method.classify(second), msg="without the first pass at hand")


def test_selected_blocks_are_saved_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.methods.caprompt.regression.list_candidates", lambda depth: [1, 2])
    monkeypatch.setattr("caprompt.methods.caprompt.regression.select_num_blocks", lambda *arguments: 2)
    method = fit_two_tasks()
    assert method.num_blocks == 2
    loaded = make_method((3, 3), classifier="ridge", projections=60)
    loaded.load_state_dict(method.state_dict())
    assert loaded.num_blocks == 2
    assert torch.equal(loaded.predict(make_images()).logits, method.predict(make_images()).logits)


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
        make_method((2,), classifier="ridge", readout_blocks=TINY.depth + 1)


def test_further_images_of_the_first_task_are_scored_among_all_classes() -> None:
    """They trained no prompt, so the regression without them is honest; one on a single class's images would be sure of it."""
    method = make_method((), classifier="ridge", projections=60)
    rng = torch.Generator().manual_seed(0)
    method.begin_task(3, rng)
    batches = [(make_images(), LABELS - 3)]
    method.prepare(batches, rng)
    method.consolidate(batches, rng)
    method.consolidate([(make_images(8)[6:], torch.zeros(2, dtype=torch.long))], rng)
    assert method.honest_scores is not None
    assert (method.honest_scores.logits[:, 1:].abs() > 1e-6).all()
