"""Checkpoints come often where they are cheap, and seldom where they are not."""

from __future__ import annotations

from caprompt.utils.throttle import Throttle


def acted(cost: float, asked_every: float, share: float, times: int) -> list[bool]:
    """What comes of being asked at even intervals, on a clock that only acting and waiting move."""
    now = 0.0

    def act() -> None:
        nonlocal now
        now += cost

    pace, found = Throttle(share, clock=lambda: now), []
    for _ in range(times):
        found.append(pace(act))
        now += asked_every
    return found


def test_what_costs_little_is_done_each_time() -> None:
    assert all(acted(cost=0.01, asked_every=1.0, share=0.05, times=50))


def test_what_costs_much_takes_no_more_than_its_share() -> None:
    found = acted(cost=1.0, asked_every=1.0, share=0.05, times=210)
    assert found[0]
    assert sum(found) == 11  # of 221 seconds in all
    assert found.index(True, 1) == 20
