from __future__ import annotations

import numpy as np
import pytest

from caprompt.data.datasets.beetles import SIDE, SPECIES, TEST, TRAIN, draw_beetle, load_beetles
from caprompt.data.images import hash_image
from caprompt.data.samples import Samples


@pytest.fixture(scope="module")
def beetles() -> tuple[Samples, Samples]:
    return load_beetles()


def test_classes_are_balanced(beetles: tuple[Samples, Samples]) -> None:
    train, test = beetles
    assert train.counts() == dict.fromkeys(train.classes, TRAIN)
    assert test.counts() == dict.fromkeys(train.classes, TEST)
    assert set(train.classes) == set(SPECIES)


def test_images_are_rgb_and_all_different(beetles: tuple[Samples, Samples]) -> None:
    images = [image for part in beetles for image in part.images]
    assert all(image.shape == (SIDE, SIDE, 3) and image.dtype == np.uint8 for image in images)
    assert len({hash_image(image) for image in images}) == len(images) == len(SPECIES) * (TRAIN + TEST)


def test_beetles_of_a_species_differ_in_color_and_ground(beetles: tuple[Samples, Samples]) -> None:
    train, _ = beetles
    for species in train.classes:
        images = np.stack(train.select_classes([species]).images).astype(float)
        corners, middles = images[:, :6, :6].mean(axis=(1, 2)), images[:, 30:42, 30:42].mean(axis=(1, 2))
        assert corners.std(axis=0).min() > 20
        assert middles.std(axis=0).min() > 20


def test_species_differ_only_in_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = draw_beetle("ringed", 3).astype(int)
    monkeypatch.setitem(SPECIES, "ringed", SPECIES["two-banded"])
    changed = np.abs(draw_beetle("ringed", 3).astype(int) - expected).max(axis=2) > 0
    assert 0.01 < changed.mean() < 0.2
    assert not changed[0].any()
    assert not changed[:, 0].any()


def test_images_are_the_same_on_every_machine(beetles: tuple[Samples, Samples]) -> None:
    train, test = beetles
    assert train.digest() == "7e4b5fbf1c65e50a507941f0cea90fd85921b5ada3ae6a2c5618210f341d3584"
    assert test.digest() == "a19cf78470ff66dd6c35f49406835e1ae28e862af273f1d6f0126e8f1c3af7a8"
