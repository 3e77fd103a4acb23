from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from caprompt.data.byte_budget import ByteBudget


def test_reservations_never_exceed_the_budget() -> None:
    budget, peaks = ByteBudget(100), []

    def work(size: int) -> None:
        with budget.reserve(size):
            peaks.append(budget.used_bytes)
            time.sleep(0.001)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [10, 60, 100, 30, 5, 50] * 10))
    assert len(peaks) == 60
    assert 50 < max(peaks) <= 100
    assert budget.used_bytes == 0


def test_more_than_the_budget_is_granted_alone() -> None:
    budget, order = ByteBudget(100), []

    def work() -> None:
        with budget.reserve(10**9):
            order.append("large")

    thread = threading.Thread(target=work)
    with budget.reserve(1):
        thread.start()
        time.sleep(0.02)
        order.append("small")
    thread.join(timeout=5)
    assert order == ["small", "large"]


def test_an_error_gives_the_memory_back() -> None:
    budget = ByteBudget(100)
    with pytest.raises(ZeroDivisionError), budget.reserve(100):
        raise ZeroDivisionError
    assert budget.used_bytes == 0
