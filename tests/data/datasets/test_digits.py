from __future__ import annotations

import numpy as np

from caprompt.data.datasets.digits import NAMES, load_digits
from caprompt.data.images import hash_image


def test_digits_are_split_by_class_into_large_rgb_pictures() -> None:
    from sklearn import datasets

    train, test = load_digits()
    assert len(train) + len(test) == 1797
    assert sorted(train.classes) == sorted(test.classes) == sorted(NAMES)
    targets = datasets.load_digits().target
    assert test.counts() == {name: int((targets == NAMES.index(name)).sum()) // 5 for name in test.classes}
    assert all(picture.shape == (64, 64, 3) and picture.dtype == np.uint8 for picture in train.pictures)
    assert all(picture[:8].max() == picture[:, -8:].max() == 0 for picture in train.pictures), "a margin of 8 on all sides"
    assert max(int(picture.max()) for picture in train.pictures[:50]) == 255


def test_the_first_picture_is_the_first_zero() -> None:
    from sklearn import datasets

    train, _ = load_digits()
    small = datasets.load_digits().images[0] * 255 / 16
    blocks = train.pictures[0][8:-8, 8:-8, 0].reshape(8, 6, 8, 6).mean(axis=(1, 3))
    assert train.labels[0] == "zero"
    assert np.corrcoef(blocks.ravel(), small.ravel())[0, 1] > 0.98


def test_no_test_picture_is_a_training_picture() -> None:
    train, test = load_digits()
    assert not {hash_image(p) for p in train.pictures} & {hash_image(p) for p in test.pictures}
