from __future__ import annotations

import pytest
import torch
from thread_group import ThreadGroup, run_in_threads
from torch import Tensor

from caprompt.methods.components.shared_rows import SharedRows

BATCHES = [torch.arange(start, min(start + 3, 11)) for start in range(0, 11, 3)]  # three of three images, and one of two


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_places_and_chosen_rows_do_not_depend_on_the_number_of_processes(size: int) -> None:
    """With 6 processes, two have no batch at all."""
    chosen = torch.tensor([10, 0, 4, 7])

    def gather(group: ThreadGroup) -> tuple[int, Tensor, list[Tensor]]:
        own = BATCHES[group.rank :: size]
        shared = SharedRows([len(batch) for batch in own], group)
        rows = torch.cat([torch.zeros(0, dtype=torch.long), *own])
        assert torch.equal(shared.places, rows)  # the rows are their own places
        return shared.total, shared.places, shared.gather([rows, rows.double().unsqueeze(1) / 2], chosen)

    results = run_in_threads(size, gather)
    assert sorted(place for _, places, _ in results for place in places.tolist()) == list(range(11))
    for total, _, (rows, halves) in results:
        assert total == 11
        assert torch.equal(rows, chosen)
        assert torch.equal(halves, chosen.double().unsqueeze(1) / 2)
