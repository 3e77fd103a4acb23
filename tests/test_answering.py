from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit

from caprompt.answering import Answering
from caprompt.methods import build
from caprompt.methods.base import Method


def method(device: str, **options: object) -> Method:
    made = build("caprompt", tiny_vit(), {"length": 4, **options}).to(device)
    for number in range(3):
        made.begin_task(2, torch.Generator().manual_seed(number))
    return made


@pytest.mark.parametrize("cycles", [2, "auto"])
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))]
)
def test_answers_are_the_methods_own_for_full_and_short_batches(device: str, cycles: object) -> None:
    """Seven batches, so that on a GPU some are replayed; the last is short."""
    made = method(device, cycles=cycles)
    ask = Answering(made, 4)
    images = torch.randn(27, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0)).to(device)
    asked = [ask(part) for part in images.split(4)]
    assert [len(answer.logits) for answer in asked] == [4] * 6 + [3]
    direct = made.answer(images)
    for name in ("logits", "task_weights", "passes"):
        found = torch.cat([getattr(answer, name) for answer in asked])
        torch.testing.assert_close(found, getattr(direct, name), rtol=1e-4, atol=1e-5)
