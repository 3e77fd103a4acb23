from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caprompt.data.image_cache import ImageCache
from caprompt.data.images import decode
from caprompt.data.sources import read_source
from caprompt.errors import DataError


def test_second_epoch_decodes_nothing(photos: Path) -> None:
    cache, images = ImageCache(), read_source(photos).images
    first = [cache.get(image) for image in images]
    second = [cache.get(image) for image in images]
    assert cache.num_decoded == 12
    assert all(a is b for a, b in zip(first, second, strict=True))


def test_full_cache_evicts_nothing(photos: Path) -> None:
    image_bytes = 12 * 10 * 3
    cache, images = ImageCache(budget_bytes=5 * image_bytes + 1), read_source(photos).images
    for _ in range(3):
        for image in images:
            cache.get(image)
    assert cache.num_decoded == 12 + 7 + 7  # five stay cached


@pytest.mark.parametrize("num_kept", [0, 3, 9])
def test_jpeg_files_have_the_pixels_of_decode_whether_they_are_kept_or_not(
    tmp_path: Path, noise, monkeypatch: pytest.MonkeyPatch, num_kept: int
) -> None:
    monkeypatch.setattr("caprompt.data.image_cache.SLAB_BYTES", 5000)  # two images and a part
    paths = [tmp_path / f"{number}.jpg" for number in range(9)]
    for number, path in enumerate(paths):
        Image.fromarray(noise(number, 20, 30)).save(path)
    cache = ImageCache(num_kept * 20 * 30 * 3)
    pixels = [cache.get(path) for path in paths]
    for path, own in zip(paths, pixels, strict=True):
        np.testing.assert_array_equal(own, decode(path))
        cache.get(path)
    assert cache.num_decoded == 9 + 9 - num_kept


def test_changed_file_is_read_again(photos: Path, noise) -> None:
    cache, path = ImageCache(), photos / "class1" / "0.png"
    cache.get(path)
    Image.fromarray(noise(999)).save(path)
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(cache.get(path), noise(999))


def test_objects_are_cached_by_identity_even_when_the_caller_frees_them(noise) -> None:
    cache = ImageCache()
    for seed in range(50):  # each image is freed at once; a reused id must not return old pixels
        np.testing.assert_array_equal(cache.get(Image.fromarray(noise(seed))), noise(seed))


def test_images_are_shrunk(noise) -> None:
    assert ImageCache(shrink_to=6).get(noise(0)).shape == (7, 6, 3)


def test_missing_file_raises_until_it_exists(tmp_path: Path, noise) -> None:
    cache, path = ImageCache(), tmp_path / "late.png"
    with pytest.raises(DataError, match=r"late.png"):
        cache.get(path)
    Image.fromarray(noise(1)).save(path)
    np.testing.assert_array_equal(cache.get(path), noise(1))


def test_concurrent_access(photos: Path) -> None:
    cache, images = ImageCache(), read_source(photos).images
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(cache.get, images * 20))
    for number, pixels in enumerate(results):
        np.testing.assert_array_equal(pixels, cache.get(images[number % 12]))
    assert cache._used_bytes == 12 * 12 * 10 * 3  # each counted once, whichever thread was first
