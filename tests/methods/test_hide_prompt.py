from __future__ import annotations

import math

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor, nn

from caprompt.methods.components.contrast import contrastive_loss
from caprompt.methods.components.prefix import Prefix
from caprompt.methods.hide_prompt import HiDePrompt, HiDePromptOptions, TaskIdentity

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([3, 4, 5, 3, 4, 5])


def make_method(tasks: tuple[int, ...] = (2, 1, 3), **options: object) -> HiDePrompt:
    """Build a method with some tasks and distinct random prompts."""
    method = HiDePrompt(tiny_vit(), HiDePromptOptions(length=4, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompts.newest.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    return method


def make_trained_method(**options: object) -> HiDePrompt:
    """Build a method with statistics of six classes, two images each, and an aligned head."""
    method = make_method(align_epochs=30, batch_size=4, **options)
    for seed in range(2):
        method.consolidate([(IMAGES, torch.arange(6)), (IMAGES + 0.1, torch.arange(6))], torch.Generator().manual_seed(seed))
    return method


def extract_single(method: HiDePrompt, image: Tensor, prompt: Tensor) -> Tensor:
    """Compute the feature of a single image under one prompt."""
    features: Tensor = method.vit(image[None], Prefix.shared(prompt, method.layers, 1))
    return features


def test_prompt_is_mixed_with_the_mean_of_earlier_ones() -> None:
    """For three tasks: P_0 = p_0, P_1 = .75 p_1 + .25 P_0, P_2 = .75 p_2 + .25 (P_0 + P_1) / 2."""
    method = make_method(mixture=0.25)
    p0, p1, p2 = (
        torch.empty_like(method.mixed_prompt()).normal_(0, 1, generator=torch.Generator().manual_seed(10 + t)) for t in range(3)
    )
    first = p0
    second = 0.75 * p1 + 0.25 * first
    torch.testing.assert_close(method.prompts.earlier, torch.stack([first, second]))
    torch.testing.assert_close(method.mixed_prompt(), 0.75 * p2 + 0.25 * (first + second) / 2)
    method.begin_task(1, torch.Generator())
    torch.testing.assert_close(method.prompts.newest[0], method.prompts.earlier[-1])  # initialized with the previous task's


def test_contrastive_loss_matches_manual_computation() -> None:
    """Centers a, b and one feature f: the mean over rows of -log softmax of the row with itself."""
    a, b, f = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.5, 1.0])
    similarities = [[float(x @ y) / 0.8 for y in (a, b, f)] for x in (a, b, f)]
    expected = sum(math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(similarities)) / 3
    loss = contrastive_loss(f[None], torch.stack([a, b]), torch.tensor([True, True]))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_empty_centers_are_left_out_of_the_contrastive_loss() -> None:
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    centers = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    occupied = torch.tensor([True, False, True, False])
    loss = contrastive_loss(features, centers, occupied)
    torch.testing.assert_close(loss, contrastive_loss(features, centers[occupied], torch.ones(2, dtype=torch.bool)))
    loss.backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["covariance", "multi-centroid"])
def test_losses_match_reference(kind: str) -> None:
    method = make_trained_method(replay=kind, contrast=0.3, centroids=2)
    features = torch.cat([extract_single(method, image, method.mixed_prompt()) for image in IMAGES])
    own = (features @ method.head.weight.T + method.head.bias)[:, 3:]
    losses = method.loss(IMAGES, LABELS)
    torch.testing.assert_close(losses["ce"], torch.nn.functional.cross_entropy(own, LABELS - 3))
    stored = method.statistics.mean[:3] if kind == "covariance" else method.statistics.centers()[0][:3].flatten(0, 1)
    rows = torch.cat([stored, features])
    expected = torch.nn.functional.cross_entropy(rows @ rows.T / 0.8, torch.arange(len(rows)))
    torch.testing.assert_close(losses["contrast"], 0.3 * expected)
    assert set(make_method(contrast=0).loss(IMAGES, LABELS)) == {"ce"}


def test_statistics_are_of_prompted_and_of_unprompted_features() -> None:
    method = make_trained_method(replay="mean")
    for label in range(6):
        prompt = [*method.prompts.earlier, method.mixed_prompt()][int(method.task_of_class[label])]
        pair = (IMAGES[label], IMAGES[label] + 0.1)
        torch.testing.assert_close(
            method.statistics.mean[label], torch.cat([extract_single(method, image, prompt) for image in pair]).mean(dim=0)
        )
        torch.testing.assert_close(method.plain_statistics.mean[label], method.vit(torch.stack(pair)).mean(dim=0))


def test_each_image_uses_the_prompt_of_its_predicted_task() -> None:
    method = make_trained_method()
    output = method.predict(IMAGES)
    tasks = method.task_of_class[method.identity(method.vit(IMAGES)).argmax(dim=1)]
    assert len(set(tasks.tolist())) > 1, "images should be assigned to several tasks"
    assert output.task_weights.argmax(dim=1).tolist() == tasks.tolist()
    assert output.passes.tolist() == [2] * 6
    for row, task in enumerate(tasks.tolist()):
        feature = extract_single(method, IMAGES[row], [*method.prompts.earlier, method.mixed_prompt()][task])
        torch.testing.assert_close(output.logits[row : row + 1], method.head(feature))


def test_known_or_single_task_needs_one_pass() -> None:
    method = make_trained_method()
    output = method.predict(IMAGES[:2], true_tasks=torch.tensor([2, 0]))
    expected = torch.cat(
        [extract_single(method, IMAGES[0], method.mixed_prompt()), extract_single(method, IMAGES[1], method.prompts.earlier[0])]
    )
    torch.testing.assert_close(output.logits, method.head(expected))
    assert output.passes.tolist() == [1, 1]
    assert make_method((2,)).predict(IMAGES).passes.tolist() == [1] * 6


def test_head_and_identity_are_aligned_from_the_second_call_on() -> None:
    method = make_method((2,), align_epochs=2, batch_size=4)
    head, rows = method.head.weight.detach().clone(), method.identity.rows.clone()
    method.consolidate([(IMAGES[:4], torch.tensor([0, 1, 0, 1]))], torch.Generator().manual_seed(0))
    assert torch.equal(method.head.weight, head)
    method.begin_task(1, torch.Generator().manual_seed(1))
    method.consolidate([(IMAGES[:4], torch.tensor([2, 2, 2, 2]))], torch.Generator().manual_seed(0))
    assert not torch.equal(method.head.weight[:2], head)
    assert not torch.equal(method.identity.rows[:2], rows)


# -- task identity ---------------------------------------------------------------------------------


def make_identity(*tasks: int, width: int = 6) -> TaskIdentity:
    identity = TaskIdentity(width)
    for number, classes in enumerate(tasks):
        identity.grow(classes, torch.Generator().manual_seed(number))
    return identity


def test_identity_logits_match_torch_layers() -> None:
    identity = make_identity(2, 3)
    for _, weight in identity.named_buffers():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)))
    into, back, norm, rows = nn.Linear(6, 12), nn.Linear(12, 6), nn.LayerNorm(6), nn.Linear(6, 5)
    for layer, names in (
        (into, ("into", "into_bias")),
        (back, ("back", "back_bias")),
        (norm, ("scale", "shift")),
        (rows, ("rows", "rows_bias")),
    ):
        layer.load_state_dict({"weight": getattr(identity, names[0]), "bias": getattr(identity, names[1])})
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(identity(features), rows(norm(features + back(nn.GELU()(into(features))))))


def test_identity_growth_keeps_earlier_logits() -> None:
    features = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    before, after = make_identity(2)(features), make_identity(2, 3)(features)
    assert after.shape == (4, 5)
    torch.testing.assert_close(after[:, :2], before)


def test_identity_weights_are_parameters_only_within_trainable() -> None:
    identity = make_identity(3)
    names = {name for name, _ in identity.named_buffers()}
    before = identity.rows.clone()
    assert not list(identity.parameters())
    with identity.trainable():
        assert {name for name, _ in identity.named_parameters()} == names
        optimizer = torch.optim.SGD(identity.parameters(), lr=0.1)
        nn.functional.cross_entropy(identity(torch.ones(1, 6)), torch.tensor([2])).backward()
        optimizer.step()
    assert not list(identity.parameters())
    assert set(identity.state_dict()) == names
    assert not identity.rows.requires_grad
    assert not torch.equal(identity.rows, before)
