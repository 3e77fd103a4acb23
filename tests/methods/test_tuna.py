from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.tuna import Tuna, TunaOptions, compute_entropies, compute_overlap, fuse_weights


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_method(tasks: tuple[int, ...] = (2, 1, 2), **options: object) -> Tuna:
    """Build a method with different adapters and four images per class."""
    method = Tuna(tiny_vit(), TunaOptions(**{"bottleneck": 4, "align_epochs": 0, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        generator = torch.Generator().manual_seed(number)
        method.begin_task(classes, generator)
        method.adapters.up.newest.data.normal_(0, 5, generator=generator)
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(len(labels), seed=number), labels)], generator)
    return method


def test_weights_are_fused_by_aggregated_sign_and_largest_magnitude() -> None:
    """Columns: all positive; the mean is negative; only one agrees with the mean; all zero; a zero mean counts as negative."""
    weights = torch.tensor([[1.0, 2.0, 3.0, 0.0, 2.0], [4.0, -3.0, -1.0, 0.0, -2.0], [2.0, -0.5, -1.0, 0.0, 0.0]])
    torch.testing.assert_close(fuse_weights(weights), torch.tensor([4.0, -3.0, 3.0, 0.0, -2.0]))
    torch.testing.assert_close(fuse_weights(weights[1:2]), weights[1])


def test_overlap_is_zero_for_orthogonal_and_one_for_equal_up_projections() -> None:
    rows = torch.zeros(3, 6, 4)  # three blocks
    rows[:, :, 1] = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)) + 0.1
    orthogonal = rows.roll(1, dims=2)
    assert compute_overlap(rows, orthogonal.unsqueeze(0)).item() == 0
    assert compute_overlap(rows, torch.stack([-rows, orthogonal, 2 * rows])).item() == pytest.approx(2)


def test_overlap_is_the_mean_of_all_cosines_of_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    newest, earlier = torch.randn(2, 6, 3, generator=generator), torch.randn(2, 2, 6, 3, generator=generator)
    total = 0.0
    for other in earlier:
        for block in range(2):
            cosines = F.normalize(newest[block], dim=1) @ F.normalize(other[block], dim=1).T
            total += abs(cosines.mean().item()) / 2
    assert compute_overlap(newest, earlier).item() == pytest.approx(total, rel=1e-5)


def test_loss_has_scaled_cosines_and_a_penalty_that_fades_with_the_tasks() -> None:
    method = make_method(overlap=0.5, margin=0.1)
    images, labels = random_images(2), torch.tensor([3, 4])
    cosines = method.head(method.vit(images, method.adapters.newest_branches())) / 20
    losses = method.loss(images, labels)
    cosines[torch.arange(2), labels] -= 0.1
    torch.testing.assert_close(losses["ce"], F.cross_entropy(20 * cosines[:, 3:], labels - 3))
    overlap = compute_overlap(method.adapters.up.newest[0], method.adapters.up.earlier)
    torch.testing.assert_close(losses["overlap"], 0.5 * math.exp(-3) * overlap)
    assert overlap > 0


def test_first_task_has_no_penalty() -> None:
    assert make_method((2,)).loss(random_images(2), torch.tensor([0, 1])).keys() == {"ce"}
    assert make_method(overlap=0.0).loss(random_images(2), torch.tensor([3, 4])).keys() == {"ce"}


def test_entropies_match_manual_computation() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]])  # probabilities 1/4 and 3/4, 1/2 and 1/2
    expected = torch.tensor([0.25 * math.log(4) + 0.75 * math.log(4 / 3), math.log(2)])
    torch.testing.assert_close(compute_entropies(logits), expected)


def test_prediction_averages_the_adapter_of_lowest_entropy_and_the_universal_one() -> None:
    method = make_method()
    images = random_images(12, seed=7)
    output = method.predict(images)
    each = [method.head(method.vit(images, branches)).softmax(dim=1).detach() for branches in method.adapters.branches()]
    universal = method.head(method.vit(images, method.universal_branches())).softmax(dim=1)
    chosen = set()
    for row in range(12):
        entropies = [-float((part[row] * part[row].log()).sum()) for part in each]
        task = entropies.index(min(entropies))
        expected = (each[task][row] + universal[row]) / 2
        torch.testing.assert_close(output.logits[row].softmax(dim=0), expected, rtol=1e-4, atol=1e-6)
        assert output.task_weights[row].tolist() == [float(index == task) for index in range(3)]
        chosen.add(task)
    assert len(chosen) > 1
    assert output.passes.tolist() == [4] * 12


def test_known_tasks_are_taken_instead() -> None:
    method, images = make_method(), random_images(3)
    each = [method.head(method.vit(images, branches)).softmax(dim=1) for branches in method.adapters.branches()]
    universal = method.head(method.vit(images, method.universal_branches())).softmax(dim=1)
    output = method.predict(images, torch.tensor([2, 0, 1]))
    expected = (torch.stack([each[2][0], each[0][1], each[1][2]]) + universal) / 2
    torch.testing.assert_close(output.logits.exp(), expected, rtol=1e-4, atol=1e-6)


def test_single_task_needs_no_universal_adapter() -> None:
    method, images = make_method((2,)), random_images(2)
    output = method.predict(images)
    assert output.passes.tolist() == [1, 1]
    torch.testing.assert_close(output.logits, method.head(method.vit(images, method.adapters.newest_branches())))
    torch.testing.assert_close(
        method.vit(images, method.universal_branches()), method.vit(images, method.adapters.newest_branches())
    )


def test_statistics_are_of_the_own_task_s_adapter() -> None:
    method = make_method((2, 1))
    expected = method.vit(random_images(4, seed=1), method.adapters.branches()[1]).mean(dim=0)
    torch.testing.assert_close(method.statistics.mean[2], expected)


def test_whole_head_is_aligned_from_the_second_call_on() -> None:
    method = Tuna(tiny_vit(), TunaOptions(bottleneck=4, align_epochs=2, batch_size=4))
    for task in range(2):
        method.begin_task(2, torch.Generator().manual_seed(task))
        before = method.head.weight.detach().clone()
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(8, seed=task), labels)], torch.Generator().manual_seed(task))
        changed = (method.head.weight != before).any(dim=1)
        assert changed.tolist() == ([False, False] if task == 0 else [True] * 4)
