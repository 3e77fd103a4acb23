from __future__ import annotations

import pytest
from thread_group import run_in_threads

from caprompt.utils.communication import ALONE, choose_share, get_communicator, use_communicator


def test_a_process_is_alone_unless_it_was_started_with_others() -> None:
    assert get_communicator() is ALONE
    (group,) = run_in_threads(1, lambda own: own)
    with use_communicator(group):
        assert get_communicator() is group
    assert get_communicator() is ALONE


@pytest.mark.parametrize(("count", "size"), [(10, 3), (4, 4), (7, 1)])
def test_shares_are_disjoint_and_complete(count: int, size: int) -> None:
    items = list(range(count))
    shares = run_in_threads(size, lambda group: items[choose_share(count, group)])
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_process_takes_all_of_fewer_items_than_processes() -> None:
    assert run_in_threads(4, lambda group: [5, 6, 7][choose_share(3, group)]) == [[5, 6, 7]] * 4
