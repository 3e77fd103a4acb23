from __future__ import annotations

import gc
import weakref

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine import inference
from caprompt.engine.inference import Predictor, PredictorCache, can_batch, choose_batch_size
from caprompt.methods import build_method
from caprompt.methods.base import Method


def make_method(device: str, **options: object) -> Method:
    method = build_method("caprompt", tiny_vit(), {"length": 4, **options}).to(device)
    for number in range(3):
        method.begin_task(2, torch.Generator().manual_seed(number))
    return method


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("cycles", [2, "auto"])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_outputs_equal_those_of_the_method_for_full_and_short_batches(device: str, cycles: object) -> None:
    """Seven batches, so that a GPU replays its graph; the last one is short."""
    method = make_method(device, cycles=cycles)
    predictor = Predictor(method, 4)
    images = torch.randn(27, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0)).to(device)
    outputs = [predictor(part) for part in images.split(4)]
    assert [len(output.logits) for output in outputs] == [4] * 6 + [3]
    direct = method.predict(images)
    for name in ("logits", "task_weights", "passes"):
        joined = torch.cat([getattr(output, name) for output in outputs])
        torch.testing.assert_close(joined, getattr(direct, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cycles", [2, "auto"])
def test_bits_do_not_depend_on_the_batch(device: str, dtype: torch.dtype, cycles: object) -> None:
    """Similar images, so that rounding decides many of them; alone, in batches of several sizes, and in another order."""
    method = make_method(device, cycles=cycles, classifier="aligned")
    method.vit.to(dtype)
    generator = torch.Generator().manual_seed(0)
    first, rest = (torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=generator) for count in (1, 50))
    images, order = (first + 0.02 * rest).to(device), torch.randperm(50, generator=generator)
    alone = predict_in_parts(Predictor(method, 1), images, 1)
    for size in (4, 7, 32):
        predictor = Predictor(method, choose_batch_size(50, size, method.device))
        for together, expected in zip(predict_in_parts(predictor, images, size), alone, strict=True):
            assert torch.equal(together, expected)
        for together, expected in zip(predict_in_parts(predictor, images[order], size), alone, strict=True):
            assert torch.equal(together, expected[order])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_short_batches_of_the_largest_predictor_have_graphs_of_their_own() -> None:
    """Batches of 64 and 128 images are not padded to 256; each is computed eagerly, captured and replayed."""
    method = make_method("cuda")
    predictor, generator = Predictor(method, 256), torch.Generator().manual_seed(0)
    images = torch.randn(256, 3, TINY.image_size, TINY.image_size, generator=generator).cuda()
    whole = predictor(images).logits
    assert not predictor.has_short_batches, "the first call has captured nothing yet"
    for _ in range(3):
        for count in (3, 64, 100, 128, 200, 256):
            assert torch.equal(predictor(images[:count]).logits, whole[:count])
    assert [function.inputs[0].shape[0] for function in predictor.captured.values()] == [64, 128, 256]
    assert predictor.has_short_batches
    assert not Predictor(method, 128).has_short_batches


def test_a_cpu_has_no_short_batches() -> None:
    assert not Predictor(make_method("cpu"), 256).has_short_batches


def predict_in_parts(predictor: Predictor, images: Tensor, size: int) -> list[Tensor]:
    outputs = [predictor(part) for part in images.split(size)]
    return [torch.cat([getattr(each, name) for each in outputs]).cpu() for name in ("logits", "task_weights", "passes")]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_true_tasks_are_passed_on_image_by_image(device: str) -> None:
    method = make_method(device, classifier="aligned")
    method.earlier.add_(torch.randn(method.earlier.shape, generator=torch.Generator().manual_seed(1)).to(device))
    images = torch.randn(9, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0)).to(device)
    tasks = torch.tensor([0, 1, 2] * 3, device=device)
    output, direct = Predictor(method, 4)(images, tasks), method.predict(images, tasks)
    torch.testing.assert_close(output.logits, direct.logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(output.logits, method.predict(images).logits, atol=1e-3)


def test_methods_without_kernels_for_a_gpu_get_images_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight bits, and PyTorch without Triton."""
    method = make_method("cpu")
    assert can_batch(method)
    monkeypatch.setattr(Method, "device", torch.device("cuda"))
    monkeypatch.setattr(inference, "has_triton", lambda device: True)
    assert can_batch(method)
    monkeypatch.setattr(inference, "uses_fp8", lambda vit: True)
    assert not can_batch(method)
    monkeypatch.undo()
    monkeypatch.setattr(Method, "device", torch.device("cuda"))
    monkeypatch.setattr(inference, "has_triton", lambda device: False)
    assert not can_batch(method)


def test_predictors_are_cached_by_size_until_the_cache_is_cleared() -> None:
    method, cache = make_method("cpu"), PredictorCache()
    predictors = [cache.get(method, size) for size in (1, 2, 2, 5)]
    assert len(set(map(id, predictors))) == 3
    predictor = weakref.ref(predictors[0])
    gc.disable()
    try:
        cache.clear()
        predictors.clear()
        assert predictor() is None  # without garbage collection: on a GPU, training needs the memory
    finally:
        gc.enable()
