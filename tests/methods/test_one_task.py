from __future__ import annotations

import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.options import Options
from caprompt.methods.templates import SelectedPromptMethod


class Scaled(SelectedPromptMethod):
    """Features times the task's number plus one; the first image belongs to task 1, the others to task 0."""

    def select_task(self, stem: Stem) -> Tensor:
        return torch.tensor([1, 0, 0])

    def features_under(self, stem: Stem, tasks: Tensor) -> Tensor:
        features: Tensor = self.vit(stem) * (tasks + 1).unsqueeze(1)
        return features

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {}


IMAGES = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))


def made(*tasks: int) -> Scaled:
    method = Scaled(tiny_vit(), Options())
    for classes in tasks or (2, 1):
        method.begin_task(classes, torch.Generator().manual_seed(classes))
    return method


def test_each_image_is_answered_under_its_chosen_task() -> None:
    method = made()
    answer = method.predict(IMAGES)
    features = method.vit(IMAGES)
    torch.testing.assert_close(answer.logits, method.head(torch.stack([2 * features[0], features[1], features[2]])))
    assert answer.task_weights.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert answer.passes.tolist() == [2, 2, 2]


def test_a_task_that_is_given_away_costs_no_choosing() -> None:
    method = made()
    answer = method.predict(IMAGES, torch.tensor([0, 1, 1]))
    features = method.vit(IMAGES)
    torch.testing.assert_close(answer.logits, method.head(torch.stack([features[0], 2 * features[1], 2 * features[2]])))
    assert answer.task_weights.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert answer.passes.tolist() == [1, 1, 1]


def test_a_single_task_needs_no_choosing() -> None:
    method = made(2)
    answer = method.predict(IMAGES)
    torch.testing.assert_close(answer.logits, method.head(method.vit(IMAGES)))
    assert answer.task_weights.tolist() == [[1], [1], [1]]
    assert answer.passes.tolist() == [1, 1, 1]
