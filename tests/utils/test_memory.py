"""Pauses of Python's garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from caprompt.utils.memory import pause_collection


@pytest.fixture(autouse=True)
def restore_collection() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_objects_are_frozen_after_a_pause_and_later_ones_collected() -> None:
    with pause_collection():
        assert not gc.isenabled()
        before = [[]]
    later = [[]]
    assert gc.isenabled()
    watched = {id(each) for each in gc.get_objects()}  # frozen ones are left out
    assert id(later) in watched
    assert id(before) not in watched


def test_collection_goes_on_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), pause_collection():
        raise ImportError
    assert gc.isenabled()


def test_collection_that_was_off_stays_off() -> None:
    gc.disable()
    with pause_collection():
        pass
    assert not gc.isenabled()
