from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caprompt.data.image_cache import ImageCache
from caprompt.data.sources import read_source
from caprompt.errors import DataError


def test_a_second_epoch_decodes_nothing(photos: Path) -> None:
    store, pictures = ImageCache(), read_source(photos).pictures
    first = [store.get(picture) for picture in pictures]
    second = [store.get(picture) for picture in pictures]
    assert store.decoded == 12
    assert all(a is b for a, b in zip(first, second, strict=True))


def test_a_full_store_keeps_what_it_has(photos: Path) -> None:
    one = 12 * 10 * 3
    store, pictures = ImageCache(budget_bytes=5 * one + 1), read_source(photos).pictures
    for _ in range(3):
        for picture in pictures:
            store.get(picture)
    assert store.decoded == 12 + 7 + 7  # five are kept, never pushed out by the others


def test_a_changed_file_is_read_again(photos: Path, noise) -> None:
    store, path = ImageCache(), photos / "class1" / "0.png"
    store.get(path)
    Image.fromarray(noise(999)).save(path)
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(store.get(path), noise(999))


def test_objects_are_kept_by_identity_even_when_the_caller_lets_go(noise) -> None:
    store = ImageCache()
    for seed in range(50):  # each image is freed by the caller at once; a reused id must not find old pixels
        np.testing.assert_array_equal(store.get(Image.fromarray(noise(seed))), noise(seed))


def test_pictures_are_shrunk(noise) -> None:
    assert ImageCache(shrink_to=6).get(noise(0)).shape == (7, 6, 3)


def test_a_missing_file_is_an_error_until_it_is_there(tmp_path: Path, noise) -> None:
    store, path = ImageCache(), tmp_path / "late.png"
    with pytest.raises(DataError, match=r"late.png"):
        store.get(path)
    Image.fromarray(noise(1)).save(path)
    np.testing.assert_array_equal(store.get(path), noise(1))


def test_many_threads_agree(photos: Path) -> None:
    store, pictures = ImageCache(), read_source(photos).pictures
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(store.get, pictures * 20))
    for number, pixels in enumerate(results):
        np.testing.assert_array_equal(pixels, store.get(pictures[number % 12]))
    assert store._used == 12 * 12 * 10 * 3  # counted once each, whoever came first
