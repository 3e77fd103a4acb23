from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from thread_group import ThreadGroup, run_in_threads

from caprompt.data import validation
from caprompt.data.image_cache import ImageCache
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.validation import NUM_TIMED, _share_problems, explain_unreadable, map_in_threads, validate_images
from caprompt.errors import DataError


def test_valid_images_are_all_returned_and_cached(photos: Path) -> None:
    cache, steps = ImageCache(), []
    samples = read_source(photos)
    assert validate_images(samples, cache, on_progress=lambda done, total: steps.append((done, total))) == samples
    assert cache.num_decoded == 12
    assert steps == [(done, 12) for done in range(1, 13)]
    cache.get(samples.images[5])
    assert cache.num_decoded == 12


def test_unreadable_image_raises_or_is_skipped(photos: Path) -> None:
    (photos / "class2" / "1.png").write_bytes(b"not an image")
    (photos / "stray.png").write_bytes(b"")
    samples = read_source(photos)
    with pytest.raises(DataError, match=r"1\.png' is not a readable image"):
        validate_images(samples, ImageCache())
    valid = validate_images(samples, ImageCache(), skip_bad=True)
    assert valid.counts() == {"class1": 4, "class2": 3, "class10": 4}
    assert valid.skipped[0] == samples.skipped[0]
    assert valid.skipped[1].endswith("1.png' is not a readable image (its content is in no known image format), skipped")
    assert len(valid.skipped) == 2


def test_missing_file_of_a_csv_is_skipped(photos: Path) -> None:
    (photos / "list.csv").write_text("class1/0.png,cat\nclass1/none.png,cat\n")
    valid = validate_images(read_source(photos / "list.csv"), ImageCache(), skip_bad=True)
    assert valid.images == (photos / "class1" / "0.png",)
    assert "none.png" in valid.skipped[0]


def test_invalid_array_is_named_by_its_index(noise) -> None:
    samples = Samples((noise(0), noise(1).astype(np.int32)), ("cat", "dog"))
    with pytest.raises(DataError, match=r"image 1 of class 'dog' cannot be used: .*int32"):
        validate_images(samples, ImageCache())


def test_class_without_readable_images_raises(photos: Path) -> None:
    for path in (photos / "class10").iterdir():
        path.write_bytes(path.name.encode())
    with pytest.raises(DataError, match="none of the images of class 'class10'"):
        validate_images(read_source(photos), ImageCache(), skip_bad=True)


def test_one_image_in_two_classes_raises(noise) -> None:
    samples = Samples((noise(0), noise(1), noise(0)), ("cat", "dog", "dog"))
    with pytest.raises(DataError, match=r"image 0 \(class 'cat'\) and image 2 \(class 'dog'\) are the same image"):
        validate_images(samples, ImageCache())
    assert validate_images(Samples((noise(0), noise(0)), ("cat", "cat")), ImageCache()).labels == ("cat", "cat")
    published = Samples(samples.images, samples.labels, published=True)
    assert len(validate_images(published.select_classes(["cat", "dog"]), ImageCache())) == 3


def test_files_that_were_read_are_compared_without_reading_them_again(
    tmp_path: Path, noise, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    paths = tuple(tmp_path / f"{number}.jpg" for number in range(4))
    for number, path in enumerate(paths):
        Image.fromarray(noise(number, 60, 60)).save(path)  # so large that its middle is not in a table
    size = max(path.stat().st_size for path in paths)
    for path in paths:
        path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    samples, cache = Samples(paths, ("cat", "cat", "dog", "dog")), ImageCache()
    with monkeypatch.context() as patch:
        for name in ("_get_size", "_read_part", "hash_image"):
            patch.setattr(validation, name, lambda image: pytest.fail("read again"))
        validate_images(samples, cache)
    assert len(cache.content_keys) == 4
    paths[3].write_bytes(paths[0].read_bytes())
    for known in (ImageCache(), ImageCache(0)):
        with pytest.raises(DataError, match=r"0\.jpg' .*3\.jpg' .* are the same image"):
            validate_images(samples, known)
    known.content_keys.pop(id(paths[3]))  # one is known, the other is not
    with pytest.raises(DataError, match="are the same image"):
        validation.check_label_conflicts(samples, known.content_keys)


def test_interrupt_leaves_no_threads(photos: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        validate_images(read_source(photos), ImageCache(), on_progress=interrupt)
    assert threading.active_count() == before


@pytest.mark.parametrize(("seconds", "threaded"), [(0.0, False), (0.002, True)])
def test_threads_are_used_for_slow_calls(seconds: float, threaded: bool) -> None:
    threads = []

    def work(index: int) -> int:
        time.sleep(seconds)
        threads.append(threading.current_thread())
        return index

    assert list(map_in_threads(work, 40)) == list(range(40))
    assert all(thread is threading.current_thread() for thread in threads[:NUM_TIMED])
    assert any(thread is not threading.current_thread() for thread in threads[NUM_TIMED:]) == threaded


def test_processes_share_the_images_and_their_problems(photos: Path) -> None:
    """Each process decodes its own share, and all of them skip the same image."""
    (photos / "class2" / "1.png").write_bytes(b"not an image")
    samples = read_source(photos)

    def find_problems(group: ThreadGroup) -> tuple[list[int], list[str | None]]:
        decoded: list[int] = []

        def find_problem(index: int) -> str | None:
            decoded.append(index)
            try:
                ImageCache().get(samples.images[index])
            except DataError as error:
                return str(error)
            return None

        return decoded, list(_share_problems(find_problem, len(samples), group))

    results = run_in_threads(5, find_problems)
    assert sorted(index for decoded, _ in results for index in decoded) == list(range(12))
    for _, problems in results:
        assert [index for index, problem in enumerate(problems) if problem] == [5]


def test_images_that_were_not_checked_are_explained_equally(photos: Path, noise) -> None:
    (photos / "class2" / "1.png").write_bytes(b"not an image")
    invalid = Samples((noise(0), noise(1).astype(np.int32)), ("cat", "dog"))
    for samples in (read_source(photos), invalid):
        with pytest.raises(DataError) as checked:
            validate_images(samples, ImageCache())
        with pytest.raises(DataError) as later, explain_unreadable(samples):
            list(map(ImageCache(0).get, samples.images))
        assert str(later.value) == str(checked.value)


def test_other_errors_about_data_are_passed_on(photos: Path) -> None:
    with pytest.raises(DataError, match="another reason"), explain_unreadable(read_source(photos)):
        raise DataError("another reason")
