"""CAPrompt's prompts, passes and losses, beyond the exact values of the fixture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.caprompt import CAPrompt, CAPromptOptions, concave_gap, linear_loss
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
