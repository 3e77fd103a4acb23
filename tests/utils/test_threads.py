from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from caprompt.utils.threads import (
    _get_pool,
    compute_in_threads,
    count_workers,
    map_on_device,
    map_parts,
    split_evenly,
    use_threads,
)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_in_the_order_of_the_items(threads: int, count: int) -> None:
    def square(number: int) -> int:
        time.sleep(0.002 * (count - number))  # the first ones end last
        return number**2

    with use_threads(threads):
        assert compute_in_threads(square, range(count), threads) == [number**2 for number in range(count)]
        assert torch.get_num_threads() == threads


def test_every_item_is_computed_on_one_thread_and_several_are_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def compute(item: int) -> tuple[int, int]:
        barrier.wait()  # which ends only when three threads are here
        return torch.get_num_threads(), threading.get_ident()

    with use_threads(3):
        results = compute_in_threads(compute, range(6), workers=3)
    assert {count for count, _ in results} == {1}
    assert len({thread for _, thread in results}) == 3


def test_one_worker_is_the_calling_thread() -> None:
    with use_threads(3):
        results = compute_in_threads(lambda item: (threading.get_ident(), torch.get_num_threads()), range(4), workers=1)
    assert set(results) == {(threading.get_ident(), 1)}


@pytest.mark.parametrize(("threads", "workers"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 3), (8, 4), (9, 3), (10, 2), (16, 4)])
def test_workers_are_few_and_use_all_threads(threads: int, workers: int) -> None:
    with use_threads(threads):
        assert count_workers() == workers


@pytest.mark.parametrize(("threads", "parts", "each"), [(1, 3, 1), (2, 1, 2), (2, 3, 1), (8, 4, 2), (8, 20, 2), (8, 2, 4)])
def test_parts_share_all_threads(threads: int, parts: int, each: int) -> None:
    with use_threads(threads):
        assert set(map_parts(lambda part: torch.get_num_threads(), range(parts))) == {each}
        assert torch.get_num_threads() == threads


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_computed_where_the_caller_computes_them(enabled: bool) -> None:
    with use_threads(2), torch.set_grad_enabled(enabled):
        assert set(compute_in_threads(lambda item: torch.is_grad_enabled(), range(8), 2)) == {enabled}


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_an_error_ends_the_work_and_is_raised(failing: int) -> None:
    done = []

    def compute(item: int) -> None:
        if item == failing:
            raise IndexError(f"item {item}")
        time.sleep(0.01)
        done.append(item)

    with use_threads(2):
        with pytest.raises(IndexError, match=f"item {failing}"):
            compute_in_threads(compute, range(100), 2)
        assert torch.get_num_threads() == 2
    assert len(done) < 20


def test_threads_that_call_it_again_do_not_wait_for_each_other() -> None:
    def compute(item: int) -> list[int]:
        caller = threading.get_ident()
        assert set(compute_in_threads(lambda each: threading.get_ident(), range(3), 2)) == {caller}
        return compute_in_threads(lambda each: item + each, range(3), 2)

    with use_threads(2):
        assert compute_in_threads(compute, range(8), 2) == [[item, item + 1, item + 2] for item in range(8)]


def test_several_callers_share_the_threads() -> None:
    results = dict[int, list[int]]()

    def call(start: int) -> None:
        with use_threads(3):
            results[start] = compute_in_threads(lambda item: start + item, range(20), 3)

    callers = [threading.Thread(target=call, args=(100 * number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=20)
    assert results == {100 * number: list(range(100 * number, 100 * number + 20)) for number in range(8)}


def test_threads_that_are_started_later_have_the_usual_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the pool that starts late must not set the number for others once the work is done."""
    _get_pool.cache_clear()
    usual, set_number, started = torch.get_num_threads(), torch.set_num_threads, list[str]()

    def set_slowly(count: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.2)
            started.append(threading.current_thread().name)
        set_number(count)

    monkeypatch.setattr(torch, "set_num_threads", set_slowly)
    with use_threads(usual + 1):
        compute_in_threads(abs, range(2), 2)
        time.sleep(0.4)
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == usual + 1
    assert len(started) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    with use_threads(2):
        compute_in_threads(abs, range(4), 2)  # starts the threads of this process
        process = multiprocessing.get_context("fork").Process(target=_compute_in_fork)
        process.start()
        process.join(timeout=30)
        assert process.exitcode == 0


def _compute_in_fork() -> None:
    assert compute_in_threads(abs, range(-4, 0), 2) == [4, 3, 2, 1]


def test_on_a_gpu_items_are_computed_in_turn() -> None:
    with use_threads(2):
        threads = map_on_device(lambda item: threading.get_ident(), range(4), torch.device("cuda"))
        assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("max_parts", [1, 2, 5])
def test_parts_are_equal_and_complete(count: int, max_parts: int) -> None:
    parts = [list(range(count))[part] for part in split_evenly(count, max_parts)]
    assert [number for part in parts for number in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == min(count, max_parts)
