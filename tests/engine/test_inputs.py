from __future__ import annotations

from pathlib import Path

import torch
from helpers import squares, write_squares

from caprompt.backbones.weights import load_backbone
from caprompt.data import read_source
from caprompt.engine.inputs import InputPipeline
from caprompt.methods.options import Options

CPU = torch.device("cpu")


def test_plain_batches_keep_the_order_and_the_backbones_normalisation(backbone: Path) -> None:
    samples = read_source(squares(["red", "blue"]))
    whole = Options(test_crop=1.0)
    images, labels = zip(*InputPipeline(load_backbone(backbone), CPU).plain(samples, list(range(10)), whole, 4), strict=True)
    assert [len(batch) for batch in images] == [4, 4, 2]
    assert torch.cat(labels).tolist() == list(range(10))
    assert torch.cat(images).shape == (10, 3, 16, 16)
    assert -1 <= float(torch.cat(images).min()) < float(torch.cat(images).max()) <= 1


def test_other_normalisations_than_the_backbones(backbone: Path) -> None:
    """A red of 1, 0, 0 as the network sees it."""
    picture = torch.zeros(16, 16, 3, dtype=torch.uint8).numpy()
    picture[:, :, 0] = 255
    expected = {
        "none": (1.0, 0.0, 0.0),
        "backbone": (1.0, -1.0, -1.0),
        "imagenet": ((1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225),
        "cifar100": ((1 - 0.5071) / 0.2675, -0.4867 / 0.2565, -0.4408 / 0.2761),
    }
    for name, colour in expected.items():
        options = Options(normalise=name)  # type: ignore[arg-type]
        ((images, _),) = InputPipeline(load_backbone(backbone), CPU).plain(read_source(([picture], ["x"])), [0], options)
        torch.testing.assert_close(images[0, :, 8, 8], torch.tensor(colour))


def test_test_crop_decides_how_much_of_a_picture_is_seen(backbone: Path) -> None:
    """A picture that is white in the middle and black at its border."""
    picture = torch.zeros(64, 64, 3, dtype=torch.uint8).numpy()
    picture[16:48, 16:48] = 255
    samples, feeder = read_source(([picture], ["x"])), InputPipeline(load_backbone(backbone), CPU)
    seen = {crop: next(iter(feeder.plain(samples, [0], Options(test_crop=crop))))[0].mean().item() for crop in (0.5, 1.0)}
    assert seen[0.5] > 0.95
    assert abs(seen[1.0] - -0.5) < 0.05


def test_epochs_differ_and_repeat(backbone: Path) -> None:
    samples, feeder = read_source(squares(["red", "blue"])), InputPipeline(load_backbone(backbone), CPU)
    epoch_batches = feeder.augmented(samples, list(range(10)), Options(batch_size=10), seed=3)
    one, again, other = (next(iter(epoch_batches(epoch))) for epoch in (0, 0, 1))
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    assert sorted(other[1].tolist()) == list(range(10))


def test_a_second_epoch_decodes_nothing(tmp_path: Path, backbone: Path) -> None:
    samples, feeder = read_source(write_squares(tmp_path, ["red", "blue"])), InputPipeline(load_backbone(backbone), CPU)
    epoch_batches = feeder.augmented(samples, [0] * 10, Options(), seed=0)
    for epoch in range(3):
        list(epoch_batches(epoch))
    assert feeder.store.decoded == 10
