"""Cheap actions run on every request, expensive ones no more than their share of the time."""

from __future__ import annotations

from caprompt.utils.throttle import Throttle


def simulate(cost: float, interval: float, share: float, requests: int) -> list[bool]:
    """Return whether each of several requests at equal intervals ran, on a simulated clock."""
    now = 0.0

    def action() -> None:
        nonlocal now
        now += cost

    throttle, ran = Throttle(share, clock=lambda: now), []
    for _ in range(requests):
        ran.append(throttle(action))
        now += interval
    return ran


def test_cheap_action_runs_on_every_request() -> None:
    assert all(simulate(cost=0.01, interval=1.0, share=0.05, requests=50))


def test_expensive_action_takes_no_more_than_its_share() -> None:
    ran = simulate(cost=1.0, interval=1.0, share=0.05, requests=210)
    assert ran[0]
    assert sum(ran) == 11  # of 221 seconds in total
    assert ran.index(True, 1) == 20
