"""Batched rendering against Pillow, on images as smooth as photographs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from caprompt.data import gpu_transforms
from caprompt.data.gpu_cache import GPUImageCache, stack_padded
from caprompt.data.gpu_transforms import crop_to_view, make_resampling_weights, render_batch
from caprompt.data.images import Pixels
from caprompt.data.transforms import EvalTransform, TrainTransform, Transform, View, render

CPU = torch.device("cpu")
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
SIZES = [(32, 32), (20, 47), (61, 40), (150, 90), (300, 220)]


def photo(height: int, width: int, seed: int) -> Pixels:
    """Make an image of smooth colors with a few sharp edges."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3)).astype(np.uint8))
    image = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).copy()
    image[height // 3 : height // 2, width // 4 :] //= 2
    return image


def render_both(images: list[Pixels], views: list[View], transform: Transform) -> tuple[np.ndarray, np.ndarray]:
    by_pillow = np.stack([render(image, view, transform) for image, view in zip(images, views, strict=True)])
    return by_pillow, render_batch(stack_padded(images, CPU), views, transform).numpy()


@pytest.mark.parametrize(
    "transform",
    [TrainTransform(32, **PLAIN, crop_scale=(0.05, 1.0), brightness=0.25), EvalTransform(32, **PLAIN), TrainTransform(64, **PLAIN)],
    ids=["train, shrinking", "test", "train, enlarging"],
)
def test_batched_rendering_differs_from_pillow_by_at_most_two_levels(transform: Transform) -> None:
    rng = np.random.default_rng(0)
    images = [photo(height, width, seed) for seed, (height, width) in enumerate(SIZES * 6)]
    views = [transform.make_view(image.shape[1], image.shape[0], rng) for image in images]
    pillow, batched = render_both(images, views, transform)
    difference = np.abs(pillow - batched) * 255
    assert difference.max() < 2.01
    assert (difference > 0.5).mean() < 0.01


def test_flip_and_brightness_are_exact() -> None:
    transform = TrainTransform(32, **PLAIN)
    for factor in (0.7, 1.0, 1.3):
        views = [View((0, 0, 32, 32), (32, 32), (0, 0), flip=True, brightness=factor)]
        pillow, batched = render_both([photo(32, 32, 1)], views, transform)
        np.testing.assert_allclose(pillow, batched, atol=1e-6)


def test_normalization() -> None:
    transform = EvalTransform(8, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    white = np.full((8, 8, 3), 255, np.uint8)
    result = render_batch(stack_padded([white], CPU), [transform.make_view(8, 8)], transform)
    torch.testing.assert_close(result[0, :, 0, 0], torch.tensor([1.0, 3.0, 0.5]))


def test_result_does_not_depend_on_batch_composition() -> None:
    """A small image padded next to a large one is rendered as it is alone."""
    transform = EvalTransform(16, **PLAIN)
    small, large = photo(20, 24, 0), photo(90, 70, 1)
    together = render_batch(
        stack_padded([small, large], CPU), [transform.make_view(24, 20), transform.make_view(70, 90)], transform
    )
    alone = render_batch(stack_padded([small], CPU), [transform.make_view(24, 20)], transform)
    assert torch.equal(together[:1], alone)


@pytest.mark.parametrize("size", [8, 32, 224])
def test_sums_over_pixels_are_exact(size: int) -> None:
    """So they are the same in float64, and in float32 in any order."""
    rng = torch.Generator().manual_seed(0)
    for source in (7, 20, 32, 61, 300):
        whole, zero = torch.tensor([float(source)]), torch.zeros(1)
        weights = make_resampling_weights(zero, whole, torch.tensor([float(size)]), zero, size, source, source / size)[0]
        levels = torch.randint(0, 256, (source, 40), generator=rng).float()
        levels[:, :20] = 255.0 * (levels[:, :20] > 127)  # sharp edges, where the negative parts of the kernel count most
        shuffled = torch.randperm(source, generator=rng)
        assert torch.equal((weights @ levels).double(), weights.double() @ levels.double())
        assert torch.equal(weights @ levels, weights[:, shuffled] @ levels[shuffled])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rendering_on_a_gpu_does_not_synchronize() -> None:
    device = torch.device("cuda")
    transform = TrainTransform(32, (0.5,) * 3, (0.2,) * 3)
    cache = GPUImageCache([np.zeros((8, 9, 3), np.uint8)] * 4, device)
    views = [transform.make_view(9, 8, np.random.default_rng(number)) for number in range(4)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        render_batch(cache.take(np.arange(4)), views, transform)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("side", [32, 72, 224])
def test_kernels_on_a_gpu_give_the_bits_of_separate_operations(side: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one view of all images and for a view of each, on photographs and on edges as sharp as they come."""
    rng = np.random.default_rng(0)
    images = [photo(height, width, seed) for seed, (height, width) in enumerate([*SIZES, (375, 500)])]
    images += [255 * rng.integers(0, 2, image.shape).astype(np.uint8) for image in images]
    pixels = stack_padded(images, torch.device("cuda"))
    pixels = torch.cat([pixels, torch.full_like(pixels[..., :1], 77)], dim=3)[..., :channels]  # Pillow's fourth byte
    train = TrainTransform(side, (0.4, 0.5, 0.6), (0.2, 0.3, 0.1), crop_scale=(0.05, 1.0), brightness=0.25)
    test = EvalTransform(side, train.mean, train.std, resize=side + 5)
    views = [train.make_view(image.shape[1], image.shape[0], rng) for image in images]
    same = [test.make_view(pixels.shape[2], pixels.shape[1])] * len(images)
    results = {}
    for has_kernels in (True, False):
        monkeypatch.setattr(gpu_transforms, "has_triton", lambda device, answer=has_kernels: answer)
        results[has_kernels] = [render_batch(pixels[..., :3], own, transform) for own, transform in ((views, train), (same, test))]
    for fused, separate in zip(results[True], results[False], strict=True):
        assert torch.equal(fused, separate)
    alone = [render_batch(pixels[number : number + 1, ..., :3], [view], train) for number, view in enumerate(views)]
    assert torch.equal(torch.cat(alone), results[True][0])


@pytest.mark.parametrize("size", [(40, 400), (400, 40), (33, 1000), (10, 90), (70, 60)])
@pytest.mark.parametrize("resize", [32, 36, 50])
def test_the_part_that_a_view_needs_renders_equally(size: tuple[int, int], resize: int) -> None:
    transform = EvalTransform(32, **PLAIN, resize=resize)
    image = photo(*size, seed=1)
    view = transform.make_view(size[1], size[0])
    part, own_view = crop_to_view(image, view, transform)
    assert max(part.shape[:2]) < 2.6 * min(size) + 20
    assert (part.size < image.size) == (max(size) > 2 * min(size))
    whole = render_batch(stack_padded([image], CPU), [view], transform)
    cropped = render_batch(stack_padded([part], CPU), [own_view], transform)
    torch.testing.assert_close(cropped, whole, rtol=0, atol=1.01 / 255)
    assert (cropped - whole).abs().mean() < 1e-4


@pytest.mark.parametrize("size", [(32, 32), (36, 36), (20, 47), (61, 40)])
@pytest.mark.parametrize("resize", [32, 36])
@pytest.mark.parametrize("extra", [{}, {"flip": True}, {"brightness": 1.2}])
def test_equal_views_render_as_unlike_ones_do(size: tuple[int, int], resize: int, extra: dict[str, Any]) -> None:
    """One pair of matrices for all images, or none for a view of the whole image at its size, changes no bit."""
    transform = EvalTransform(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.1), resize=resize)
    view = replace(transform.make_view(size[1], size[0]), **extra)
    other = replace(view, flip=not view.flip)
    pixels = stack_padded([photo(*size, seed) for seed in range(5)], CPU)
    alike = render_batch(pixels, [view] * 5, transform)
    unlike = render_batch(pixels, [view] * 4 + [other], transform)
    assert torch.equal(alike[:4], unlike[:4])
    assert not torch.equal(alike[4], unlike[4])
    assert torch.equal(render_batch(pixels, [view] * 5, transform), alike)
