from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import squares, write_squares
from torch import Tensor

from caprompt.backbones.weights import load_backbone
from caprompt.data import Samples, read_source
from caprompt.engine.inputs import InputPipeline, RepeatableBatches
from caprompt.methods.options import Options

CPU = torch.device("cpu")


def test_eval_batches_keep_the_order_and_normalize_as_the_backbone(backbone: Path) -> None:
    samples = read_source(squares(["red", "blue"]))
    whole = Options(test_crop=1.0)
    images, labels = zip(*InputPipeline(load_backbone(backbone), CPU).eval_batches(samples, list(range(10)), whole, 4), strict=True)
    assert [len(batch) for batch in images] == [4, 4, 2]
    assert torch.cat(labels).tolist() == list(range(10))
    assert torch.cat(images).shape == (10, 3, 16, 16)
    assert -1 <= float(torch.cat(images).min()) < float(torch.cat(images).max()) <= 1


def test_each_value_of_the_option_normalise(backbone: Path) -> None:
    """A red pixel (1, 0, 0) after normalization."""
    image = torch.zeros(16, 16, 3, dtype=torch.uint8).numpy()
    image[:, :, 0] = 255
    expected = {
        "none": (1.0, 0.0, 0.0),
        "backbone": (1.0, -1.0, -1.0),
        "imagenet": ((1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225),
        "cifar100": ((1 - 0.5071) / 0.2675, -0.4867 / 0.2565, -0.4408 / 0.2761),
    }
    for name, color in expected.items():
        options = Options(normalise=name)  # type: ignore[arg-type]
        ((images, _),) = InputPipeline(load_backbone(backbone), CPU).eval_batches(read_source(([image], ["x"])), [0], options)
        torch.testing.assert_close(images[0, :, 8, 8], torch.tensor(color))


def test_test_crop_is_the_fraction_of_the_image_that_is_used(backbone: Path) -> None:
    """The image is white in the middle and black at its border."""
    image = torch.zeros(64, 64, 3, dtype=torch.uint8).numpy()
    image[16:48, 16:48] = 255
    samples, pipeline = read_source(([image], ["x"])), InputPipeline(load_backbone(backbone), CPU)
    means = {crop: next(iter(pipeline.eval_batches(samples, [0], Options(test_crop=crop))))[0].mean().item() for crop in (0.5, 1.0)}
    assert means[0.5] > 0.95
    assert abs(means[1.0] - -0.5) < 0.05


def test_epochs_differ_and_are_repeatable(backbone: Path) -> None:
    samples, pipeline = read_source(squares(["red", "blue"])), InputPipeline(load_backbone(backbone), CPU)
    epoch_batches = pipeline.train_batches(samples, list(range(10)), Options(), seed=3, batch_size=10)
    first, repeated, second = (next(iter(epoch_batches(epoch))) for epoch in (0, 0, 1))
    assert torch.equal(first[0], repeated[0])
    assert not torch.equal(first[0], second[0])
    assert sorted(second[1].tolist()) == list(range(10))


@pytest.mark.parametrize("batched", [False, True])
def test_crop_scale_is_the_fraction_of_the_image_in_training_crops(backbone: Path, batched: bool) -> None:
    """On an image whose left half is black, most small crops have one color, and crops of the whole image never do."""
    image = torch.zeros(64, 64, 3, dtype=torch.uint8).numpy()
    image[:, 32:] = 255
    samples, pipeline = read_source(([image] * 20, ["x"] * 20)), InputPipeline(load_backbone(backbone), CPU, batched=batched)

    def train_crops(low: float, high: float) -> torch.Tensor:
        options = Options(crop_scale=(low, high), batch_size=20)
        return next(iter(pipeline.train_batches(samples, [0] * 20, options, seed=0, batch_size=24)(0)))[0]

    spread = {scale: train_crops(*scale).flatten(1).std(dim=1) for scale in ((0.02, 0.05), (0.98, 1.0))}
    assert (spread[0.02, 0.05] < 0.5).sum() >= 10
    assert (spread[0.98, 1.0] > 0.9).all()


def test_images_are_decoded_once(tmp_path: Path, backbone: Path) -> None:
    samples, pipeline = read_source(write_squares(tmp_path, ["red", "blue"])), InputPipeline(load_backbone(backbone), CPU)
    epoch_batches = pipeline.train_batches(samples, [0] * 10, Options(), seed=0, batch_size=24)
    for epoch in range(3):
        list(epoch_batches(epoch))
    assert pipeline.cache.num_decoded == 10


def test_images_are_uploaded_once_and_then_evaluated_from_there(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long image among others of two sizes; on a CPU, the images would stay on the host."""
    rng, shapes = np.random.default_rng(0), [(20, 24), (24, 20), (20, 24), (10, 60), (20, 24)]
    samples = Samples(tuple(rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes), ("a",) * 5)
    pipeline, options = InputPipeline(load_backbone(backbone), CPU, batched=True), Options()
    streamed = list(pipeline.eval_part(samples, [4, 3, 1], [7, 8, 9], options, 2))
    uploaded = pipeline.upload(samples)
    assert uploaded is not None
    assert pipeline.upload(samples) is uploaded
    uploaded.resident = torch.from_numpy(uploaded.host)
    monkeypatch.setattr(pipeline, "eval_batches", None)
    for (images, targets), (expected, expected_targets) in zip(
        pipeline.eval_part(samples, [4, 3, 1], [7, 8, 9], options, 2), streamed, strict=True
    ):
        assert torch.equal(images, expected)
        assert torch.equal(targets, expected_targets)


@pytest.mark.parametrize("keep", [False, True])
def test_batches_are_kept_once_all_of_them_were_made(keep: bool) -> None:
    starts: list[float | None] = []

    def start(share: float | None) -> Iterator[tuple[Tensor, Tensor]]:
        starts.append(share)
        for number in range(3):
            yield torch.full((2,), float(number)), torch.tensor([number])

    batches = RepeatableBatches(start, lambda: 32, keep)
    next(iter(batches))  # stopped after the first
    for _ in range(3):
        assert [int(labels) for _, labels in batches] == [0, 1, 2]
    assert starts == [None] * (2 if keep else 4)
    for _ in range(3):
        assert [int(labels) for _, labels in batches.crop(0.7)] == [0, 1, 2]
    assert starts == [None] * (2 if keep else 4) + [0.7] * 3
