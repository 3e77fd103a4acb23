from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from caprompt.data import transforms
from caprompt.data.images import Pixels
from caprompt.data.transforms import EvalTransform, TrainTransform, Transform, draw_crop_box, render
from caprompt.errors import OptionError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PATTERN = (np.arange(37 * 53 * 3) * 7919 % 256).astype(np.uint8).reshape(37, 53, 3)
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def apply(transform: Transform, image: Pixels, rng: object = None) -> NDArray[np.float32]:
    """Choose a view and render it."""
    return render(image, transform.make_view(image.shape[1], image.shape[0], rng), transform)  # type: ignore[arg-type]


class Draws:
    """A generator with predefined draws."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0)

    def uniform(self, low: float, high: float) -> float:
        value = self.values.pop(0)
        assert low <= value <= high
        return value


def test_evaluation_is_bit_equal_to_torchvision() -> None:
    # torchvision 0.28: Resize(18, BICUBIC), CenterCrop(16), ToTensor, Normalize on the same Pillow image
    result = apply(EvalTransform(16, MEAN, STD), PATTERN)
    assert (result.shape, result.dtype) == ((3, 16, 16), np.float32)
    assert zlib.crc32(result.tobytes()) == 162552396


def test_training_is_bit_equal_to_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    # torchvision 0.28: resized_crop(top 3, left 5, 20 x 30), hflip, adjust_brightness(1.2), to_tensor, normalize
    monkeypatch.setattr(transforms, "draw_crop_box", lambda *_: (5, 3, 35, 23))
    result = apply(TrainTransform(16, MEAN, STD, brightness=0.25), PATTERN, Draws(0.49, 1.2))
    assert zlib.crc32(result.tobytes()) == 94868617


def test_values_are_normalized_per_channel() -> None:
    red = np.full((20, 20, 3), (255, 0, 51), np.uint8)
    result = apply(EvalTransform(8, mean=(0.5, 0.5, 0.2), std=(0.5, 0.25, 1.0)), red)
    np.testing.assert_allclose(result[:, 3, 3], [1, -2, 0], atol=1e-6)


def test_center_is_cropped() -> None:
    image = np.zeros((16, 64, 3), np.uint8)
    image[:, 24:40] = 255
    assert apply(EvalTransform(16, **PLAIN, resize=16), image).min() == 1.0
    assert apply(EvalTransform(16, **PLAIN, resize=16), image.transpose(1, 0, 2).copy()).min() == 1.0


def test_odd_margin_is_rounded_as_in_torchvision() -> None:
    columns = np.broadcast_to(np.arange(19, dtype=np.uint8)[None, :, None], (16, 19, 3)).copy()
    cropped = apply(EvalTransform(16, **PLAIN, resize=16), columns)
    assert round(float(cropped[0, 0, 0]) * 255) == 2  # round(1.5), not 3 // 2


def test_resize_smaller_than_crop_raises() -> None:
    with pytest.raises(OptionError, match="resize=200"):
        EvalTransform(224, MEAN, STD, resize=200)


def test_flip_probability() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :4] = 255
    whole = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0), **PLAIN}
    rng = np.random.default_rng(0)
    for flip, expected in ((0.0, 0), (1.0, 200), (0.5, 100)):
        transform = TrainTransform(8, flip=flip, **whole)
        flipped = sum(apply(transform, image, rng)[0, 0, 0] == 0 for _ in range(200))
        assert abs(flipped - expected) <= (30 if flip == 0.5 else 0)


def test_brightness_range() -> None:
    gray = np.full((8, 8, 3), 100, np.uint8)
    rng = np.random.default_rng(0)
    levels = [apply(TrainTransform(4, brightness=0.3, **PLAIN), gray, rng).mean() * 255 for _ in range(200)]
    assert 70 - 1 <= min(levels) < 75
    assert 125 < max(levels) <= 130 + 1
    assert apply(TrainTransform(4, **PLAIN), gray, rng).mean() * 255 == pytest.approx(100)


def test_same_generator_state_gives_same_bits() -> None:
    transform = TrainTransform(16, MEAN, STD, brightness=0.2)
    first, again, other = (apply(transform, PATTERN, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 10**6))
def test_crops_are_inside_and_within_the_ratio(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = draw_crop_box(width, height, (0.08, 1.0), (3 / 4, 4 / 3), np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    w, h = right - left, bottom - top
    assert (w - 0.5) / (h + 0.5) <= 4 / 3 + 1e-9  # up to rounding of the sides
    assert (w + 0.5) / (h - 0.5) >= 3 / 4 - 1e-9


def test_crops_cover_the_allowed_areas() -> None:
    rng = np.random.default_rng(0)
    boxes = [draw_crop_box(100, 100, (0.1, 0.6), (3 / 4, 4 / 3), rng) for _ in range(300)]
    areas = [(right - left) * (bottom - top) / 10_000 for left, top, right, bottom in boxes]
    assert 0.09 < min(areas) < 0.15
    assert 0.55 < max(areas) < 0.61
    assert min(left for left, *_ in boxes) == min(top for _, top, *_ in boxes) == 0


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(100, 40, (23, 0, 76, 40)), (40, 100, (0, 23, 40, 76)), (100, 100, (0, 0, 100, 100))],
)
def test_fallback_is_the_largest_central_crop(width: int, height: int, box: tuple[int, ...]) -> None:
    # an area of twice the image never fits
    assert draw_crop_box(width, height, (2.0, 2.0), (3 / 4, 4 / 3), np.random.default_rng(0)) == box
