"""CAPrompt's behaviour beyond the exact values of the fixture."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.caprompt import CAPrompt, CAPromptOptions


def made(tasks: tuple[int, ...] = (2, 1, 3), **options: object) -> CAPrompt:
    """A method with distinct random prompts, as if it had learned some tasks."""
    method = CAPrompt(tiny_vit(), CAPromptOptions(**{"length": 4, "classifier": "aligned", **options}))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompt.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    method.head.weight.data.mul_(4)
    return method


def images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))


LABELS = torch.tensor([3, 4, 5, 3, 4, 5])


def changed(method: CAPrompt, **options: object) -> CAPrompt:
    method.options = method.options.model_copy(update=options)
    return method


def test_a_new_prompt_starts_from_the_previous_one() -> None:
    method = made()
    last = method.prompts[-1].detach().clone()
    method.begin_task(1, torch.Generator())
    assert torch.equal(method.prompts[-1], last)
    assert torch.equal(method.earlier[-1], last)
    assert method.prompt.requires_grad
    assert not method.earlier.requires_grad


@pytest.mark.parametrize(("init", "low", "high"), [("uniform", 0.5, 0.65), ("normal", 0.015, 0.025)])
def test_first_prompt(init: str, low: float, high: float) -> None:
    method = CAPrompt(tiny_vit(), CAPromptOptions(init=init, classifier="aligned"))  # type: ignore[arg-type]
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.prompts[0].shape == (TINY.depth, 2, 5, TINY.width)
    assert low < float(method.prompts[0].detach().std()) < high


def test_mixing_is_the_weighted_sum_of_each_image() -> None:
    method = made()
    weights = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    rows = method.mix(weights)  # (L, 2, B, n, D)
    torch.testing.assert_close(rows[:, :, 0], 0.2 * method.prompts[0] + 0.3 * method.prompts[1] + 0.5 * method.prompts[2])
    torch.testing.assert_close(rows[:, :, 1], method.prompts[0])


def test_weights_are_sums_over_unequal_tasks() -> None:
    method = made((2, 1, 3))
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.1, 0.1, 0.2]]))
    torch.testing.assert_close(method.next_weights(logits), torch.tensor([[0.3, 0.3, 0.4]]))


def test_query_pass_uses_no_prompt() -> None:
    method = made(first_pass="query")
    torch.testing.assert_close(method.first_logits(method.vit.stem(images())), method.head(method.vit(images())))
    assert not torch.allclose(
        method.first_logits(method.vit.stem(images())),
        changed(method, first_pass="prompted").first_logits(method.vit.stem(images())),
    )


def test_more_cycles_apply_the_same_map_again() -> None:
    method = made()
    two = method.predict(images())
    three = changed(method, cycles=3).predict(images())
    weights = method.next_weights(two.logits)
    torch.testing.assert_close(three.task_weights, weights)
    torch.testing.assert_close(three.logits, method.logits_under(method.vit.stem(images()), weights))


def test_auto_stops_each_image_when_its_weights_have_settled() -> None:
    method = made(cycles="auto", settled=0.05, max_cycles=6)
    answer = method.predict(images(30))
    assert len(set(answer.passes.tolist())) > 1, "images should need different numbers of passes here"
    for row in range(30):
        fixed = changed(made(), cycles=int(answer.passes[row])).predict(images(30)[row : row + 1])
        torch.testing.assert_close(answer.logits[row : row + 1], fixed.logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(answer.task_weights[row : row + 1], fixed.task_weights, rtol=0, atol=1e-5)
        if answer.passes[row] < 6:
            settled = method.next_weights(fixed.logits) - fixed.task_weights
            assert settled.abs().max() < 0.05


def test_auto_with_one_task_needs_one_pass() -> None:
    assert made((3,), cycles="auto").predict(images()).passes.tolist() == [1] * 6


def test_auto_never_answers_from_the_query_pass() -> None:
    for options in ({"first_pass": "query"}, {"aggregation": False}):
        assert made((3,), cycles="auto", **options).predict(images()).passes.tolist() == [2] * 6


def test_without_aggregation_the_predicted_tasks_prompt_is_used_alone() -> None:
    method = made(aggregation=False)
    answer = method.predict(images())
    query = method.sum_by_task(method.head(method.vit(images())).softmax(dim=1))
    assert answer.task_weights.argmax(dim=1).tolist() == query.argmax(dim=1).tolist()
    assert set(answer.task_weights.flatten().tolist()) == {0.0, 1.0}
    assert set(method.loss(images(), LABELS)) == {"ce"}


def test_true_tasks_choose_the_prompt() -> None:
    method = made()
    answer = method.predict(images(2), true_tasks=torch.tensor([1, 2]))
    weights = torch.tensor([[0.0, 1, 0], [0, 0, 1]])
    torch.testing.assert_close(answer.logits, method.logits_under(method.vit.stem(images(2)), weights))


@pytest.mark.parametrize(
    ("tasks", "options", "parts"),
    [
        ((6,), {}, {"ce"}),
        ((3, 3), {}, {"ce", "concave"}),
        ((2, 1, 3), {}, {"ce", "concave", "linear"}),
        ((2, 1, 3), {"alpha": 0}, {"ce", "linear"}),
        ((2, 1, 3), {"beta": 0}, {"ce", "concave"}),
        ((2, 1, 3), {"alpha": 0, "beta": 0}, {"ce"}),
    ],
)
def test_which_losses_there_are(tasks: tuple[int, ...], options: dict[str, float], parts: set[str]) -> None:
    assert set(made(tasks, **options).loss(images(), LABELS)) == parts


def test_switching_the_concave_constraint_off_leaves_the_cross_entropy() -> None:
    with_it, without = made().loss(images(), LABELS), made(alpha=0).loss(images(), LABELS)
    torch.testing.assert_close(with_it["ce"], without["ce"])


def test_the_head_learns_from_the_cross_entropy_alone_and_only_in_its_new_rows() -> None:
    method = made()
    method.loss(images(), LABELS)["concave"].backward()
    assert method.head.weight.grad is None
    assert method.prompt.grad is not None
    method.loss(images(), LABELS)["ce"].backward()
    assert method.head.weight.grad is not None
    assert method.head.weight.grad[:3].abs().max() == 0
    assert method.head.weight.grad[3:].abs().max() > 0


def test_confident_images_do_not_divide_by_zero() -> None:
    """An image whose weight lies wholly on the new task has no old mixture to speak of."""
    method = made()
    method.head.bias.data[3:] += 1000
    losses = method.loss(images(), LABELS)
    torch.stack(list(losses.values())).sum().backward()
    assert method.prompt.grad is not None
    assert method.prompt.grad.isfinite().all()


def test_layers_can_be_chosen() -> None:
    method = made(layers=(1,))
    assert method.prompts[0].shape[0] == 1
    assert CAPromptOptions(layers="0-8").layers == tuple(range(9))  # type: ignore[arg-type]
    assert CAPromptOptions(layers=3).layers == (3,)  # type: ignore[arg-type]
