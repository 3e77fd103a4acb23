from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from caprompt.data.image_cache import ImageCache
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source, validate_images
from caprompt.data.validation import FIRST, looked_at
from caprompt.errors import DataError


def test_good_pictures_are_all_kept_and_cached(photos: Path) -> None:
    store, steps = ImageCache(), []
    samples = read_source(photos)
    assert validate_images(samples, store, on_progress=lambda done, total: steps.append((done, total))) == samples
    assert store.decoded == 12
    assert steps == [(done, 12) for done in range(1, 13)]
    store.get(samples.pictures[5])
    assert store.decoded == 12


def test_a_bad_picture_is_named_or_skipped(photos: Path) -> None:
    (photos / "class2" / "1.png").write_bytes(b"not a picture")
    (photos / "stray.png").write_bytes(b"")
    samples = read_source(photos)
    with pytest.raises(DataError, match=r"1\.png' is not a readable image"):
        validate_images(samples, ImageCache())
    kept = validate_images(samples, ImageCache(), skip_bad=True)
    assert kept.counts() == {"class1": 4, "class2": 3, "class10": 4}
    assert kept.skipped[0] == samples.skipped[0]
    assert kept.skipped[1].endswith("1.png' is not a readable image (its content is in no known image format), left out")
    assert len(kept.skipped) == 2


def test_a_missing_file_of_a_csv_can_be_skipped(photos: Path) -> None:
    (photos / "list.csv").write_text("class1/0.png,cat\nclass1/none.png,cat\n")
    kept = validate_images(read_source(photos / "list.csv"), ImageCache(), skip_bad=True)
    assert kept.pictures == (photos / "class1" / "0.png",)
    assert "none.png" in kept.skipped[0]


def test_a_bad_array_is_told_by_its_place(noise) -> None:
    samples = Samples((noise(0), noise(1).astype(np.int32)), ("cat", "dog"))
    with pytest.raises(DataError, match=r"image 1 of class 'dog' cannot be used: .*int32"):
        validate_images(samples, ImageCache())


def test_a_class_that_loses_all_its_images_is_an_error(photos: Path) -> None:
    for path in (photos / "class10").iterdir():
        path.write_bytes(path.name.encode())
    with pytest.raises(DataError, match="none of the images of class 'class10'"):
        validate_images(read_source(photos), ImageCache(), skip_bad=True)


def test_one_image_in_two_classes_is_an_error(noise) -> None:
    samples = Samples((noise(0), noise(1), noise(0)), ("cat", "dog", "dog"))
    with pytest.raises(DataError, match=r"image 0 \(class 'cat'\) and image 2 \(class 'dog'\) are the same image"):
        validate_images(samples, ImageCache())
    assert validate_images(Samples((noise(0), noise(0)), ("cat", "cat")), ImageCache()).labels == ("cat", "cat")
    as_published = Samples(samples.pictures, samples.labels, published=True)
    assert len(validate_images(as_published.of_classes(["cat", "dog"]), ImageCache())) == 3


def test_an_interrupt_leaves_no_threads(photos: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        validate_images(read_source(photos), ImageCache(), on_progress=interrupt)
    assert threading.active_count() == before


@pytest.mark.parametrize(("pause", "threaded"), [(0.0, False), (0.002, True)])
def test_threads_look_at_what_takes_its_time(pause: float, threaded: bool) -> None:
    seen = []

    def look(position: int) -> int:
        time.sleep(pause)
        seen.append(threading.current_thread())
        return position

    assert list(looked_at(look, 40)) == list(range(40))
    assert all(thread is threading.current_thread() for thread in seen[:FIRST])
    assert any(thread is not threading.current_thread() for thread in seen[FIRST:]) == threaded
