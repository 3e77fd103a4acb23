from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.errors import DataError


def pixel(value: int) -> np.ndarray:
    return np.full((2, 2, 3), value, np.uint8)


def test_classes_counts_and_selection() -> None:
    samples = Samples(tuple(pixel(i) for i in range(4)), ("c10", "c2", "c10", "c1"))
    assert len(samples) == 4
    assert samples.classes == ("c1", "c2", "c10")
    assert list(samples.counts().items()) == [("c1", 1), ("c2", 1), ("c10", 2)]
    selected = samples.select(np.array([3, 0]))
    assert selected.labels == ("c1", "c10")
    assert [int(p[0, 0, 0]) for p in selected.images] == [3, 0]
    assert samples.select_classes(["c10", "c1"]).labels == ("c10", "c10", "c1")


def test_different_lengths_raise() -> None:
    with pytest.raises(DataError, match="1 images but 2 labels"):
        Samples((pixel(0),), ("a", "b"))


def test_invalid_class_name_raises() -> None:
    with pytest.raises(DataError, match="'a/b' cannot be a class name"):
        Samples((pixel(0),), ("a/b",))


def test_digest_depends_on_content_labels_and_order_but_not_on_paths(photos: Path, tmp_path: Path) -> None:
    samples = read_source(photos)
    first = samples.digest()
    shutil.copytree(photos, tmp_path / "moved")
    assert read_source(tmp_path / "moved").digest() == first

    assert samples.select(range(11, -1, -1)).digest() != first
    relabeled = Samples(samples.images, ("class3", *samples.labels[1:]))
    assert relabeled.digest() != first
    (photos / "class1" / "0.png").write_bytes(b"other")
    assert Samples(samples.images, samples.labels).digest() != first


def test_digest_of_arrays() -> None:
    def digest(value: int) -> str:
        return Samples((pixel(value),), ("a",)).digest()

    assert digest(1) == digest(1) != digest(2)


def test_select_per_class() -> None:
    images = tuple(np.full((2, 2), value, np.uint8) for value in range(6))
    few = Samples(images, ("cat", "cat", "dog", "cat", "dog", "cow")).select_per_class(1)
    assert few.labels == ("cat", "dog", "cow")
    assert [int(np.asarray(image)[0, 0]) for image in few.images] == [0, 2, 5]


def test_composed_and_decomposed_labels_are_one_class() -> None:
    composed, decomposed = (unicodedata.normalize(form, "Löwe") for form in ("NFC", "NFD"))
    samples = Samples((pixel(0), pixel(1)), (composed, decomposed))
    assert samples.labels == (composed, composed)
    assert samples.counts() == {composed: 2}


def test_hashes_are_computed_in_a_thread_meanwhile(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    samples, expected = (Samples(tuple(paths), ("a", "b", "a")) for _ in range(2))
    with samples.hash_aside():
        pass
    for path in paths:
        path.unlink()
    with expected.hash_aside() as raise_failure:
        pass
    with pytest.raises(DataError, match="cannot be read"):
        raise_failure()
    assert len(set(samples.hashes)) == 3
