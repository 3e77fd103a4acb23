from __future__ import annotations

import numpy as np

from caprompt.data.datasets.digits import NAMES, load_digits
from caprompt.data.images import hash_image


def test_digits_are_split_by_class_and_enlarged_to_rgb() -> None:
    from sklearn import datasets

    train, test = load_digits()
    assert len(train) + len(test) == 1797
    assert sorted(train.classes) == sorted(test.classes) == sorted(NAMES)
    targets = datasets.load_digits().target
    assert test.counts() == {name: int((targets == NAMES.index(name)).sum()) // 5 for name in test.classes}
    assert all(image.shape == (64, 64, 3) and image.dtype == np.uint8 for image in train.images)
    assert all(image[:8].max() == image[:, -8:].max() == 0 for image in train.images), "a margin of 8 on all sides"
    assert max(int(image.max()) for image in train.images[:50]) == 255


def test_first_image_is_the_first_zero() -> None:
    from sklearn import datasets

    train, _ = load_digits()
    small = datasets.load_digits().images[0] * 255 / 16
    blocks = train.images[0][8:-8, 8:-8, 0].reshape(8, 6, 8, 6).mean(axis=(1, 3))
    assert train.labels[0] == "zero"
    assert np.corrcoef(blocks.ravel(), small.ravel())[0, 1] > 0.98


def test_splits_are_disjoint() -> None:
    train, test = load_digits()
    assert not {hash_image(image) for image in train.images} & {hash_image(image) for image in test.images}
