"""Batched rendering against Pillow, on pictures as smooth as photographs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from caprompt.data.gpu_cache import GPUImageCache, stacked
from caprompt.data.gpu_transforms import render_batch
from caprompt.data.images import Pixels
from caprompt.data.transforms import EvalTransform, TrainTransform, Transform, View, render

CPU = torch.device("cpu")
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
SIZES = [(32, 32), (20, 47), (61, 40), (150, 90), (300, 220)]


def photo(height: int, width: int, seed: int) -> Pixels:
    """Smooth colours with a few sharp edges."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3)).astype(np.uint8))
    picture = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).copy()
    picture[height // 3 : height // 2, width // 4 :] //= 2
    return picture


def both(pictures: list[Pixels], views: list[View], recipe: Transform) -> tuple[np.ndarray, np.ndarray]:
    by_pillow = np.stack([render(picture, view, recipe) for picture, view in zip(pictures, views, strict=True)])
    return by_pillow, render_batch(stacked(pictures, CPU), views, recipe).numpy()


@pytest.mark.parametrize(
    "recipe",
    [TrainTransform(32, **PLAIN, crop_scale=(0.05, 1.0), brightness=0.25), EvalTransform(32, **PLAIN), TrainTransform(64, **PLAIN)],
    ids=["train, shrinking", "test", "train, enlarging"],
)
def test_the_same_views_give_the_same_pictures_to_two_levels(recipe: Transform) -> None:
    rng = np.random.default_rng(0)
    pictures = [photo(height, width, seed) for seed, (height, width) in enumerate(SIZES * 6)]
    views = [recipe.view(picture.shape[1], picture.shape[0], rng) for picture in pictures]
    pillow, batched = both(pictures, views, recipe)
    difference = np.abs(pillow - batched) * 255
    assert difference.max() < 2.01
    assert (difference > 0.5).mean() < 0.01


def test_mirroring_and_brightness_alone_are_exact() -> None:
    recipe = TrainTransform(32, **PLAIN)
    for factor in (0.7, 1.0, 1.3):
        views = [View((0, 0, 32, 32), (32, 32), (0, 0), flip=True, brightness=factor)]
        pillow, batched = both([photo(32, 32, 1)], views, recipe)
        np.testing.assert_allclose(pillow, batched, atol=1e-6)


def test_normalisation() -> None:
    recipe = EvalTransform(8, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    white = np.full((8, 8, 3), 255, np.uint8)
    seen = render_batch(stacked([white], CPU), [recipe.view(8, 8)], recipe)
    torch.testing.assert_close(seen[0, :, 0, 0], torch.tensor([1.0, 3.0, 0.5]))


def test_company_in_a_batch_changes_no_pixel() -> None:
    """A small picture padded beside a large one is rendered as when it is alone."""
    recipe = EvalTransform(16, **PLAIN)
    small, large = photo(20, 24, 0), photo(90, 70, 1)
    together = render_batch(stacked([small, large], CPU), [recipe.view(24, 20), recipe.view(70, 90)], recipe)
    alone = render_batch(stacked([small], CPU), [recipe.view(24, 20)], recipe)
    torch.testing.assert_close(together[:1], alone)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_on_a_gpu_rendering_waits_for_nothing() -> None:
    device = torch.device("cuda")
    recipe = TrainTransform(32, (0.5,) * 3, (0.2,) * 3)
    bank = GPUImageCache([np.zeros((8, 9, 3), np.uint8)] * 4, device)
    views = [recipe.view(9, 8, np.random.default_rng(number)) for number in range(4)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        render_batch(bank.take(np.arange(4)), views, recipe)
    finally:
        torch.cuda.set_sync_debug_mode("default")
