from __future__ import annotations

import pytest
import torch
from torch import Tensor

from caprompt.utils.side_stream import compute_aside

CPU = torch.device("cpu")
CUDA = pytest.param(torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_items_come_in_order_and_are_complete_when_they_are_used(device: torch.device, ahead: int) -> None:
    source = torch.ones(2000, 2000, device=device)

    def compute() -> list[tuple[Tensor, Tensor]]:
        return [(number * (source @ source), torch.tensor([number], device=device)) for number in range(4)]

    def compute_lazily():  # type: ignore[no-untyped-def]
        for number in range(4):
            yield number * (source @ source), torch.tensor([number], device=device)

    results = [(images.sum(), label) for images, label in compute_aside(compute_lazily(), device, ahead)]
    for (total, label), (images, expected) in zip(results, compute(), strict=True):
        assert torch.equal(total, images.sum())
        assert torch.equal(label, expected)


def test_nothing_is_computed_before_it_is_needed() -> None:
    started = []

    def compute():  # type: ignore[no-untyped-def]
        for number in range(3):
            started.append(number)
            yield (torch.tensor(number),)

    items = compute_aside(compute(), CPU)
    assert not started
    next(items)
    assert started == [0]
