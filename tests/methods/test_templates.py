from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.options import Options
from caprompt.methods.templates import Baseline, BaselineOptions, OwnTaskMethod

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 3, 4, 0])


class MeanColour(OwnTaskMethod):
    """A feature that can be computed by hand: each colour's mean, padded to the width."""

    def logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(F.pad(images.mean(dim=(2, 3)), (0, TINY.width - 3)))
        return logits


class TwicePass(MeanColour):
    @property
    def passes(self) -> int:
        return 2


class PlainMeanColour(MeanColour, Baseline):
    pass


def begun(method: OwnTaskMethod) -> OwnTaskMethod:
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def by_hand(method: OwnTaskMethod) -> Tensor:
    colours = torch.stack([torch.stack([image[channel].mean() for channel in range(3)]) for image in IMAGES])
    return colours @ method.head.weight[:, :3].T + method.head.bias


def within_own_task(logits: Tensor) -> Tensor:
    """Image by image: classes 0 and 1 came first, 2 to 4 second."""
    firsts = [2 if label >= 2 else 0 for label in LABELS.tolist()]
    ends = [5 if label >= 2 else 2 for label in LABELS.tolist()]
    return torch.stack(
        [-logits[i, a:b].log_softmax(dim=0)[LABELS[i] - a] for i, (a, b) in enumerate(zip(firsts, ends, strict=True))]
    ).mean()


def test_the_cross_entropy_is_within_each_images_own_task() -> None:
    method = begun(MeanColour(tiny_vit(), Options()))
    torch.testing.assert_close(method.loss(IMAGES, LABELS), {"ce": within_own_task(by_hand(method))})
    assert method.trains_on_known_classes


def test_plain_methods_may_leave_the_mask_away() -> None:
    for masked in (True, False):
        method = begun(PlainMeanColour(tiny_vit(), BaselineOptions(masked=masked)))
        logits = by_hand(method)
        expected = within_own_task(logits) if masked else F.cross_entropy(logits, LABELS)
        torch.testing.assert_close(method.loss(IMAGES, LABELS)["ce"], expected)


def test_the_answer_is_the_logits_of_all_classes() -> None:
    method = begun(MeanColour(tiny_vit(), Options()))
    answer = method.predict(IMAGES)
    torch.testing.assert_close(answer.logits, by_hand(method).detach())
    probabilities = answer.logits.softmax(dim=1)
    torch.testing.assert_close(answer.task_weights[:, 1], probabilities[:, 2:].sum(dim=1))
    assert answer.passes.tolist() == [1, 1, 1, 1]
    assert not answer.logits.requires_grad
    assert begun(TwicePass(tiny_vit(), Options())).predict(IMAGES).passes.tolist() == [2, 2, 2, 2]
