from __future__ import annotations

import gc
import weakref

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine.inference import Float32Backbone, Predictor, PredictorCache, is_close
from caprompt.methods import build_method
from caprompt.methods.base import Method, MethodOutput
from caprompt.methods.linear import Linear


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
def test_close_outputs_equal_those_in_float32(device: str) -> None:
    """Similar images, close between two classes, and enough of them that the captured float32 graph is replayed."""
    method = make_method(device, classifier="aligned")
    method.vit.to(torch.bfloat16)
    exact = Float32Backbone(method.vit).attach_to(method)
    generator = torch.Generator().manual_seed(0)
    first, rest = (torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=generator) for count in (1, 150))
    images = (first + 0.02 * rest).to(device)
    with torch.no_grad():
        mean_logits = exact.predict(images).logits.mean(dim=0)
        method.head.bias.sub_(mean_logits)[:2].add_(1.0)  # both methods share the head
    predictor = Predictor(method, 12)
    outputs = [predictor(part) for part in images.split(12)]
    logits, expected = torch.cat([output.logits for output in outputs]), exact.predict(images).logits
    close = is_close(expected, predictor.bound / 4)  # rounding hardly ever moves a margin this far
    assert close[-50:].any()
    torch.testing.assert_close(logits[close], expected[close], rtol=1e-4, atol=1e-5)
    assert torch.equal(logits.argmax(dim=1), expected.argmax(dim=1))


class RoundingMethod(Linear):
    """A method with an error of its logits in half precision, whose sign differs between a batch and a single image.

    `passes` is the number of bytes of the backbone's dtype, so that tests see which one computed an output.
    """

    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        logits = images[:, :1].flatten(1)[:, : self.num_classes]
        if self.vit.dtype != torch.float32:
            logits = logits + 0.01 * torch.tensor([1.0, -1.0]).repeat(self.num_classes // 2) * (1 if len(images) > 1 else -1)
        return self.output_from_logits(logits, passes=self.vit.dtype.itemsize)


def make_rounding_method(dtype: torch.dtype) -> RoundingMethod:
    method = RoundingMethod(tiny_vit().to(dtype), RoundingMethod.options_class())
    method.begin_task(4, torch.Generator())
    return method


def calibrate_predictor(method: Method, size: int, images: int = 80) -> Predictor:
    """Return a predictor that has measured how far rounding moves a margin."""
    predictor = Predictor(method, size)
    for part in torch.randn(images, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5)).split(size):
        predictor(part)
    return predictor


@pytest.mark.parametrize("size", [1, 3])
def test_close_outputs_in_half_precision_are_recomputed_in_float32(size: int) -> None:
    method, images = make_rounding_method(torch.bfloat16), torch.zeros(6, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, :4] = torch.tensor(
        [[0.0, 0.01, -9, -9], [2, 0, 0, 0], [1, 1.005, 0.9, -1], [0, 3, 0, 0], [0, 0, 0, 4], [1.005, 1, 0, 0]]
    )
    labels = torch.tensor([1, 0, 1, 1, 3, 0])
    predictor = calibrate_predictor(method, size)
    # Rounding moves the margin by 0.02 in two of three images; in the others it moves both best classes alike.
    assert predictor.bound == pytest.approx(4 * 0.02 * (2 / 3) ** 0.5, rel=0.1)
    outputs = [predictor(part) for part in images.split(size)]
    assert torch.equal(torch.cat([output.logits for output in outputs]).argmax(dim=1), labels)
    assert torch.cat([output.passes for output in outputs]).tolist() == [4, 2, 4, 2, 2, 4]
    unchecked = torch.cat([method.predict(part).logits for part in images.split(size)])
    assert not torch.equal(unchecked.argmax(dim=1), labels)


def test_first_images_are_predicted_in_both_precisions() -> None:
    method, images = make_rounding_method(torch.bfloat16), torch.zeros(40, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, 1] = 3  # none of them is close
    predictor = Predictor(method, 40)
    assert predictor(images).passes.tolist() == [4] * 32 + [2] * 8
    assert predictor(images).passes.tolist() == [4] * 32 + [2] * 8
    assert predictor(images).passes.tolist() == [2] * 40  # calibrated after 2 x 32 images


def test_float32_twin_shares_what_the_method_has_learned() -> None:
    method = make_method("cpu")
    method.vit.to(torch.bfloat16)
    float32_backbone = Float32Backbone(method.vit)
    twin, images = float32_backbone.attach_to(method), torch.randn(2, 3, TINY.image_size, TINY.image_size)
    assert (twin.vit.dtype, method.vit.dtype) == (torch.float32, torch.bfloat16)
    assert twin.head is method.head
    assert float32_backbone.attach_to(method).vit is twin.vit
    torch.testing.assert_close(twin.predict(images).logits, method.predict(images).logits, rtol=0.1, atol=0.05)


def test_cached_predictors_share_one_float32_backbone_that_clear_frees() -> None:
    method, cache = make_rounding_method(torch.bfloat16), PredictorCache()
    predictors = [cache.get(method, size) for size in (1, 2, 2, 5)]
    assert len(set(map(id, predictors))) == 3
    assert len({id(each.float32_predictor(count).method.vit) for each in predictors for count in (1, 3)}) == 1
    backbone = weakref.ref(predictors[0].float32_predictor(1).method.vit)
    gc.disable()
    try:
        cache.clear()
        predictors.clear()
        assert backbone() is None  # without garbage collection: on a GPU, training needs the memory
    finally:
        gc.enable()


def test_overflowed_output_is_recomputed_and_does_not_change_the_bound() -> None:
    method, images = make_rounding_method(torch.bfloat16), torch.zeros(3, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, 1] = 3
    predictor = calibrate_predictor(method, 3)
    bound = predictor.bound
    output = predictor.predict_batch(images)
    output.logits[1] = float("nan")
    predictor.recheck_close(images, output)
    assert output.passes.tolist() == [2, 4, 2]
    assert output.logits.isfinite().all()
    assert predictor.bound == bound


def test_nothing_is_recomputed_in_float32_precision() -> None:
    method, images = make_rounding_method(torch.float32), torch.zeros(3, 3, TINY.image_size, TINY.image_size)
    predictor = Predictor(method, 3)
    assert predictor(images).passes.tolist() == [4, 4, 4]
    assert not predictor.float32_predictors


def test_few_images_are_recomputed_in_a_small_batch() -> None:
    predictor = Predictor(make_rounding_method(torch.bfloat16), 64)
    assert [predictor.float32_predictor(count).size for count in (1, 5, 8, 31)] == [1, 8, 8, 32]
    assert len(predictor.float32_predictors) == 3
