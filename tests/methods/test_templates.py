from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Stem
from caprompt.methods.options import Options
from caprompt.methods.templates import Baseline, BaselineOptions, OwnTaskMethod, SelectedPromptMethod

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 3, 4, 0])


class MeanColor(OwnTaskMethod):
    """A feature that is easy to compute by hand: the mean of each channel, padded to the width."""

    def logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(F.pad(images.mean(dim=(2, 3)), (0, TINY.width - 3)))
        return logits


class TwoPasses(MeanColor):
    @property
    def passes(self) -> int:
        return 2


class MeanColorBaseline(MeanColor, Baseline):
    pass


class ScaledFeatures(SelectedPromptMethod):
    """Features times (task + 1); the first image is assigned to task 1, the others to task 0."""

    def select_task(self, stem: Stem) -> Tensor:
        return torch.tensor([1, 0, 0])

    def extract_features(self, stem: Stem, tasks: Tensor) -> Tensor:
        features: Tensor = self.vit(stem) * (tasks + 1).unsqueeze(1)
        return features

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {}


def begin_tasks(method: OwnTaskMethod) -> OwnTaskMethod:
    for number, num_classes in enumerate((2, 3)):
        method.begin_task(num_classes, torch.Generator().manual_seed(number))
    return method


def compute_logits_by_hand(method: OwnTaskMethod) -> Tensor:
    means = torch.stack([torch.stack([image[channel].mean() for channel in range(3)]) for image in IMAGES])
    return means @ method.head.weight[:, :3].T + method.head.bias


def compute_own_task_loss(logits: Tensor) -> Tensor:
    """Image by image: classes 0 and 1 are of the first task, 2 to 4 of the second."""
    firsts = [2 if label >= 2 else 0 for label in LABELS.tolist()]
    ends = [5 if label >= 2 else 2 for label in LABELS.tolist()]
    return torch.stack(
        [-logits[i, a:b].log_softmax(dim=0)[LABELS[i] - a] for i, (a, b) in enumerate(zip(firsts, ends, strict=True))]
    ).mean()


def test_own_task_method_uses_the_classes_of_each_images_own_task() -> None:
    method = begin_tasks(MeanColor(tiny_vit(), Options()))
    torch.testing.assert_close(method.loss(IMAGES, LABELS), {"ce": compute_own_task_loss(compute_logits_by_hand(method))})
    assert method.trains_on_known_classes


def test_baseline_can_use_all_classes() -> None:
    for masked in (True, False):
        method = begin_tasks(MeanColorBaseline(tiny_vit(), BaselineOptions(masked=masked)))
        logits = compute_logits_by_hand(method)
        expected = compute_own_task_loss(logits) if masked else F.cross_entropy(logits, LABELS)
        torch.testing.assert_close(method.loss(IMAGES, LABELS)["ce"], expected)


def test_direct_method_predicts_the_logits_of_all_classes() -> None:
    method = begin_tasks(MeanColor(tiny_vit(), Options()))
    output = method.predict(IMAGES)
    torch.testing.assert_close(output.logits, compute_logits_by_hand(method).detach())
    probabilities = output.logits.softmax(dim=1)
    torch.testing.assert_close(output.task_weights[:, 1], probabilities[:, 2:].sum(dim=1))
    assert output.passes.tolist() == [1, 1, 1, 1]
    assert not output.logits.requires_grad
    assert begin_tasks(TwoPasses(tiny_vit(), Options())).predict(IMAGES).passes.tolist() == [2, 2, 2, 2]


def make_selected(*tasks: int) -> ScaledFeatures:
    method = ScaledFeatures(tiny_vit(), Options())
    for num_classes in tasks or (2, 1):
        method.begin_task(num_classes, torch.Generator().manual_seed(num_classes))
    return method


def test_each_image_is_predicted_with_the_prompt_of_its_selected_task() -> None:
    method = make_selected()
    output = method.predict(IMAGES[:3])
    features = method.vit(IMAGES[:3])
    torch.testing.assert_close(output.logits, method.head(torch.stack([2 * features[0], features[1], features[2]])))
    assert output.task_weights.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert output.passes.tolist() == [2, 2, 2]


def test_known_tasks_need_no_selection_pass() -> None:
    method = make_selected()
    output = method.predict(IMAGES[:3], torch.tensor([0, 1, 1]))
    features = method.vit(IMAGES[:3])
    torch.testing.assert_close(output.logits, method.head(torch.stack([features[0], 2 * features[1], 2 * features[2]])))
    assert output.task_weights.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert output.passes.tolist() == [1, 1, 1]


def test_a_single_task_needs_no_selection_pass() -> None:
    method = make_selected(2)
    output = method.predict(IMAGES[:3])
    torch.testing.assert_close(output.logits, method.head(method.vit(IMAGES[:3])))
    assert output.task_weights.tolist() == [[1], [1], [1]]
    assert output.passes.tolist() == [1, 1, 1]
