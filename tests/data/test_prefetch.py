from __future__ import annotations

import threading
import time

import pytest

from caprompt.data.prefetch import in_order


def slow_first(number: int) -> int:
    time.sleep(0.02 if number == 0 else 0)
    return number * number


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_come_in_order(workers: int) -> None:
    assert list(in_order(slow_first, range(20), workers, ahead=5)) == [n * n for n in range(20)]


def test_no_more_than_ahead_is_begun_early() -> None:
    begun: list[int] = []
    results = in_order(begun.append, range(100), workers=2, ahead=6)
    next(results)
    time.sleep(0.05)
    assert sorted(begun) == list(range(7))
    results.close()


def test_an_error_comes_out_and_the_threads_end() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda n: 1 // (3 - n), range(50), workers=3, ahead=10))
    assert threading.active_count() == before


def test_closing_drops_the_work_not_begun() -> None:
    before, done = threading.active_count(), []

    def work(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    results = in_order(work, range(1000), workers=2, ahead=500)
    next(results)
    results.close()
    assert threading.active_count() == before
    assert len(done) < 20
