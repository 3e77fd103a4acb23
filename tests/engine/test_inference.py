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


def method(device: str, **options: object) -> Method:
    made = build_method("caprompt", tiny_vit(), {"length": 4, **options}).to(device)
    for number in range(3):
        made.begin_task(2, torch.Generator().manual_seed(number))
    return made


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))


@pytest.mark.parametrize("cycles", [2, "auto"])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_answers_are_the_methods_own_for_full_and_short_batches(device: str, cycles: object) -> None:
    """Seven batches, so that on a GPU some are replayed; the last is short."""
    made = method(device, cycles=cycles)
    predictor = Predictor(made, 4)
    images = torch.randn(27, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0)).to(device)
    outputs = [predictor(part) for part in images.split(4)]
    assert [len(output.logits) for output in outputs] == [4] * 6 + [3]
    direct = made.predict(images)
    for name in ("logits", "task_weights", "passes"):
        joined = torch.cat([getattr(output, name) for output in outputs])
        torch.testing.assert_close(joined, getattr(direct, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_what_is_asked_again_is_answered_in_float32(device: str) -> None:
    """Images much alike, between two classes, and so many that replays of the second network are among the answers."""
    made = method(device, classifier="aligned")
    made.vit.to(torch.bfloat16)
    exact = Float32Backbone(made.vit).attach_to(made)
    generator = torch.Generator().manual_seed(0)
    first, rest = (torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=generator) for count in (1, 150))
    images = (first + 0.02 * rest).to(device)
    with torch.no_grad():
        middle = exact.predict(images).logits.mean(dim=0)
        made.head.bias.sub_(middle)[:2].add_(1.0)  # shared by both
    predictor = Predictor(made, 12)
    outputs = [predictor(part) for part in images.split(12)]
    logits, expected = torch.cat([output.logits for output in outputs]), exact.predict(images).logits
    again = is_close(expected, predictor.bound / 2)
    assert again[-50:].any()
    torch.testing.assert_close(logits[again], expected[again], rtol=1e-4, atol=1e-5)
    assert torch.equal(logits.argmax(dim=1), expected.argmax(dim=1))


class Rounding(Linear):
    """A method whose logits are rounded where its backbone is in half precision, in a batch otherwise than alone."""

    def predict(self, images: Tensor, true_tasks: Tensor | None = None) -> MethodOutput:
        logits = images[:, :1].flatten(1)[:, : self.num_classes]
        if self.vit.dtype != torch.float32:
            logits = logits + 0.01 * torch.tensor([1.0, -1.0]).repeat(self.num_classes // 2) * (1 if len(images) > 1 else -1)
        return self.output_from_logits(logits, passes=self.vit.dtype.itemsize)


def rounding(dtype: torch.dtype) -> Rounding:
    made = Rounding(tiny_vit().to(dtype), Rounding.options_class())
    made.begin_task(4, torch.Generator())
    return made


def asking(made: Method, size: int, images: int = 80) -> Predictor:
    """A each to predictor that has joined out how far rounding moves a lead."""
    predictor = Predictor(made, size)
    for part in torch.randn(images, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5)).split(size):
        predictor(part)
    return predictor


@pytest.mark.parametrize("size", [1, 3])
def test_in_half_precision_close_decisions_are_made_in_float32(size: int) -> None:
    made, images = rounding(torch.bfloat16), torch.zeros(6, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, :4] = torch.tensor(
        [[0.0, 0.01, -9, -9], [2, 0, 0, 0], [1, 1.005, 0.9, -1], [0, 3, 0, 0], [0, 0, 0, 4], [1.005, 1, 0, 0]]
    )
    labels = torch.tensor([1, 0, 1, 1, 3, 0])
    predictor = asking(made, size)
    assert predictor.bound == pytest.approx(
        4 * 0.02 * (2 / 3) ** 0.5, rel=0.1
    )  # where the best two are moved apart, not both alike
    answers = [predictor(part) for part in images.split(size)]
    assert torch.equal(torch.cat([output.logits for output in answers]).argmax(dim=1), labels)
    assert torch.cat([output.passes for output in answers]).tolist() == [4, 2, 4, 2, 2, 4]  # 4 bytes where it was outputs again
    plain = torch.cat([made.predict(part).logits for part in images.split(size)])
    assert not torch.equal(plain.argmax(dim=1), labels)


def test_the_first_images_are_asked_in_both_precisions() -> None:
    made, images = rounding(torch.bfloat16), torch.zeros(40, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, 1] = 3  # all of them sure
    predictor = Predictor(made, 40)
    assert predictor(images).passes.tolist() == [4] * 32 + [2] * 8
    assert predictor(images).passes.tolist() == [4] * 32 + [2] * 8
    assert predictor(images).passes.tolist() == [2] * 40  # 2 x 32 images are enough


def test_the_second_backbone_is_float32_and_shares_what_was_learned() -> None:
    made = method("cpu")
    made.vit.to(torch.bfloat16)
    second = Float32Backbone(made.vit)
    twin, images = second.attach_to(made), torch.randn(2, 3, TINY.image_size, TINY.image_size)
    assert (twin.vit.dtype, made.vit.dtype) == (torch.float32, torch.bfloat16)
    assert twin.head is made.head
    assert second.attach_to(made).vit is twin.vit
    torch.testing.assert_close(twin.predict(images).logits, made.predict(images).logits, rtol=0.1, atol=0.05)


def test_all_ways_share_one_second_backbone_and_are_gone_when_cleared() -> None:
    made, cache = rounding(torch.bfloat16), PredictorCache()
    predictors = [cache.get(made, size) for size in (1, 2, 2, 5)]
    assert len(set(map(id, predictors))) == 3
    assert len({id(each.float32_predictor(count).method.vit) for each in predictors for count in (1, 3)}) == 1
    backbone = weakref.ref(predictors[0].float32_predictor(1).method.vit)
    gc.disable()
    try:
        cache.clear()
        predictors.clear()
        assert backbone() is None  # at once: on a GPU, training needs the memory
    finally:
        gc.enable()


def test_an_answer_that_overflowed_is_asked_again_and_tells_nothing_of_rounding() -> None:
    made, images = rounding(torch.bfloat16), torch.zeros(3, 3, TINY.image_size, TINY.image_size)
    images[:, 0, 0, 1] = 3
    predictor = asking(made, 3)
    bound = predictor.bound
    output = predictor.predict_batch(images)
    output.logits[1] = float("nan")
    predictor.recheck_close(images, output)
    assert output.passes.tolist() == [2, 4, 2]
    assert output.logits.isfinite().all()
    assert predictor.bound == bound


def test_in_full_precision_nothing_is_asked_twice() -> None:
    made, images = rounding(torch.float32), torch.zeros(3, 3, TINY.image_size, TINY.image_size)
    predictor = Predictor(made, 3)
    assert predictor(images).passes.tolist() == [4, 4, 4]
    assert not predictor.float32_predictors


def test_few_images_are_asked_again_in_a_small_batch() -> None:
    predictor = Predictor(rounding(torch.bfloat16), 64)
    assert [predictor.float32_predictor(count).size for count in (1, 5, 8, 31)] == [1, 8, 8, 32]
    assert len(predictor.float32_predictors) == 3
