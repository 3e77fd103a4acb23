from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.components.contrast import contrastive_loss
from caprompt.methods.components.heads import cosines
from caprompt.methods.mos import Mos, MosOptions


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_method(tasks: tuple[int, ...] = (2, 1, 2), **options: object) -> Mos:
    """Build a method with different adapters and four images per class."""
    method = Mos(tiny_vit(), MosOptions(**{"bottleneck": 4, "align_epochs": 0, **options}))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        generator = torch.Generator().manual_seed(number)
        method.begin_task(classes, generator)
        method.adapters.up.newest.data.normal_(0, 5, generator=generator)
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(len(labels), seed=number), labels)], generator)
    return method


class NamingHead(torch.nn.Module):
    """A head that names classes from a script instead of looking at the features."""

    def __init__(self, classes: list[int]) -> None:
        super().__init__()
        self.classes, self.calls = classes, 0

    def forward(self, features: Tensor) -> Tensor:
        logits = F.one_hot(torch.tensor([self.classes[self.calls]] * len(features)), 5).float() * (1 + self.calls)
        self.calls += 1
        return logits


def test_adapter_moves_towards_the_mean_of_the_earlier_ones_in_every_step() -> None:
    method = make_method(merge=0.25)
    before = [rows.newest.detach().clone() for rows in method.adapters.rows]
    method.loss(random_images(2), torch.tensor([3, 4]))
    for rows, weights in zip(method.adapters.rows, before, strict=True):
        torch.testing.assert_close(rows.newest[0], 0.75 * weights[0] + 0.25 * (rows.earlier[0] + rows.earlier[1]) / 2)
    assert (method.adapters.up.newest - before[2]).norm() > 0.1


def test_first_adapter_is_not_merged() -> None:
    method = make_method((2,))
    before = method.adapters.up.newest.detach().clone()
    method.loss(random_images(2), torch.tensor([0, 1]))
    assert torch.equal(method.adapters.up.newest, before)


def test_loss_contrasts_features_with_the_means_of_earlier_classes() -> None:
    method = make_method(merge=0.0, contrast=0.3)
    images, labels = random_images(2, seed=9), torch.tensor([3, 4])
    features = method.vit(images, method.adapters.branches()[2])
    losses = method.loss(images, labels)
    expected = contrastive_loss(features, method.statistics.mean[:3], torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(losses["contrast"], 0.3 * expected)
    torch.testing.assert_close(losses["ce"], F.cross_entropy(method.head(features)[:, 3:], labels - 3))
    assert "contrast" not in make_method(contrast=0.0).loss(images, labels)


def test_statistics_are_of_the_own_and_prototypes_of_the_first_adapter() -> None:
    method = make_method((2, 1))
    images = random_images(4, seed=1)  # of the second task's class
    first, second = (method.vit(images, branches) for branches in method.adapters.branches())
    torch.testing.assert_close(method.prototypes.mean[2], first.mean(dim=0))
    torch.testing.assert_close(method.statistics.mean[2], second.mean(dim=0))


@pytest.mark.parametrize(
    ("start", "named", "adapters", "passes"),
    [
        (1, [0, 2], 1, 2),  # agrees at once: class 2 is of task 1
        (1, [0, 3, 4], 2, 3),  # class 3 is of task 2, and there class 4 is, too
        (0, [1], 0, 1),  # the first adapter needs no further pass
        (1, [0, 1], 0, 2),  # back to the first adapter: the head on its features names class 0
        (1, [0, 3, 2, 3, 2], 2, 5),  # never agrees: four adapters are tried (1, 2, 1, 2)
    ],
)
def test_adapters_are_switched_until_the_prediction_agrees(start: int, named: list[int], adapters: int, passes: int) -> None:
    """The first entry of `named` is the head's answer under the first adapter, which is always computed."""
    method = make_method()
    method.head = NamingHead(named)  # type: ignore[assignment]
    stem = method.vit.stem(random_images(1))
    logits, tasks, counts = method.refine(stem, method.extract_first_features(stem), torch.tensor([start]), switches=4)
    assert tasks.tolist() == [adapters]
    assert counts.tolist() == [passes]
    assert method.head.calls == len(named)
    assert logits.argmax().item() == (named[0] if adapters == 0 else named[passes - 1])


def test_images_of_a_batch_switch_independently() -> None:
    """Compare with the loop over single images that the paper describes."""
    method = make_method()
    images = random_images(24, seed=5)
    output = method.predict(images)
    raw = 3 * cosines(method.vit(images, method.adapters.branches()[0]), method.prototypes.mean)
    outcomes = set()
    for row, image in enumerate(images):
        task = int(method.task_of_class[raw[row].argmax()])
        for _ in range(4):
            logits = method.head(method.vit(image[None], method.adapters.branches()[task]))[0]
            used, task = task, int(method.task_of_class[logits.argmax()])
            if task == used:
                break
        expected = (logits.softmax(dim=0) + raw[row].softmax(dim=0)) / 2
        torch.testing.assert_close(output.logits[row].softmax(dim=0), expected, rtol=1e-4, atol=1e-5)
        assert output.task_weights[row].argmax().item() == used
        outcomes.add(int(output.passes[row]))
    assert len(outcomes) > 1


def test_one_task_takes_one_pass_and_a_known_task_is_not_switched() -> None:
    assert make_method((2,)).predict(random_images(3)).passes.tolist() == [1, 1, 1]
    method = make_method()
    tasks = torch.tensor([0, 1, 2])
    output = method.predict(random_images(3), tasks)
    assert output.task_weights.argmax(dim=1).tolist() == [0, 1, 2]
    assert output.passes.tolist() == [1, 2, 2]


def test_without_ensemble_the_logits_are_the_head_s() -> None:
    method = make_method(ensemble=False)
    images, tasks = random_images(2), torch.tensor([1, 1])
    expected = method.head(method.vit(images, method.adapters.branches()[1]))
    torch.testing.assert_close(method.predict(images, tasks).logits, expected)


def test_head_is_aligned_from_the_second_call_on() -> None:
    method = Mos(tiny_vit(), MosOptions(bottleneck=4, align_epochs=2, batch_size=4))
    for task in range(2):
        method.begin_task(2, torch.Generator().manual_seed(task))
        before = method.head.weight.detach().clone()  # type: ignore[operator, union-attr]
        labels = torch.arange(method.num_known_classes, method.num_classes).repeat(4)
        method.consolidate([(random_images(8, seed=task), labels)], torch.Generator().manual_seed(task))
        assert bool((method.head.weight != before).any()) == (task == 1)
