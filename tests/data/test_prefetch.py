from __future__ import annotations

import sys
import threading
import time

import pytest

from caprompt.data.prefetch import MAX_DECODE_THREADS, count_decode_threads, prefetch_map


def square_with_delay(number: int) -> int:
    time.sleep(0.02 if number == 0 else 0)
    return number * number


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (3, 3), (64, MAX_DECODE_THREADS)])
def test_as_many_threads_decode_as_there_are_cores(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr("caprompt.data.prefetch.count_cores", lambda: cores)
    assert count_decode_threads() == threads


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_results_are_in_order(workers: int) -> None:
    assert list(prefetch_map(square_with_delay, range(20), workers, ahead=5)) == [n * n for n in range(20)]


def test_at_most_ahead_items_start_early() -> None:
    started: list[int] = []
    results = prefetch_map(started.append, range(100), workers=2, ahead=6)
    next(results)
    time.sleep(0.05)
    assert sorted(started) == list(range(7))
    results.close()


def test_error_propagates_and_threads_end() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        list(prefetch_map(lambda n: 1 // (3 - n), range(50), workers=3, ahead=10))
    assert threading.active_count() == before


def test_close_cancels_work_that_has_not_started() -> None:
    before, done = threading.active_count(), []

    def work(number: int) -> None:
        time.sleep(0.01)
        done.append(number)

    results = prefetch_map(work, range(1000), workers=2, ahead=500)
    next(results)
    results.close()
    assert threading.active_count() == before
    assert len(done) < 20


def test_threads_switch_often_until_the_last_iterator_ends() -> None:
    usual = sys.getswitchinterval()
    first, second = (prefetch_map(square_with_delay, range(9), workers=2, ahead=2) for _ in range(2))
    next(first), next(second)
    assert sys.getswitchinterval() < usual
    first.close()
    assert sys.getswitchinterval() < usual
    list(second)
    assert sys.getswitchinterval() == usual
