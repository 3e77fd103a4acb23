from __future__ import annotations

import torch
from helpers import TINY, tiny_vit

from caprompt.methods.sequential_prompt import SequentialPrompt, SequentialPromptOptions


def make_method(**options: object) -> SequentialPrompt:
    method = SequentialPrompt(tiny_vit(), SequentialPromptOptions(length=4, **options))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 3, 4, 0])


def test_new_task_keeps_the_prompt() -> None:
    method = make_method()
    before = method.prompt.detach().clone()
    method.begin_task(1, torch.Generator().manual_seed(9))
    assert torch.equal(method.prompt, before)
    assert method.head.weight.shape[0] == 6


def test_default_cross_entropy_is_over_all_classes() -> None:
    method = make_method()
    expected = torch.nn.functional.cross_entropy(method.logits(IMAGES), LABELS)
    torch.testing.assert_close(method.loss(IMAGES, LABELS)["ce"], expected)


def test_masked_cross_entropy_is_among_classes_of_the_own_task() -> None:
    method = make_method(masked=True)
    logits = method.logits(IMAGES)
    own = [logits[row, 2:] if label >= 2 else logits[row, :2] for row, label in enumerate(LABELS.tolist())]
    within = [label - 2 if label >= 2 else label for label in LABELS.tolist()]
    losses = [torch.nn.functional.cross_entropy(row[None], torch.tensor([label])) for row, label in zip(own, within, strict=True)]
    torch.testing.assert_close(method.loss(IMAGES, LABELS)["ce"], torch.stack(losses).mean())
