from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from caprompt.data import streaming
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import decode
from caprompt.data.prefetch import prefetch_map
from caprompt.data.samples import Samples
from caprompt.data.sources import read_source
from caprompt.data.streaming import iter_streamed_batches, iter_streamed_images
from caprompt.data.transforms import EvalTransform
from caprompt.errors import DataError

EVAL = EvalTransform(8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture
def samples(photos: Path) -> Samples:
    return read_source(photos)


def collect_streamed(samples: Samples, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    settings = {"transform": EVAL, "cache": ImageCache(0), "batch_size": 5, "device": torch.device("cpu")} | options
    images, targets = zip(*iter_streamed_batches(samples, range(len(samples)), **settings), strict=True)
    return torch.cat(images), torch.cat(targets)


@pytest.mark.parametrize("workers", [1, 3, 12, 30])
def test_streamed_batches_do_not_depend_on_the_number_of_threads(samples: Samples, noise, workers: int) -> None:
    mixed = Samples((*samples.images, noise(1, 30, 8), noise(2, 8, 30)), (*samples.labels, "a", "a"))
    for source in (samples, mixed):
        images, targets = collect_streamed(source, workers=0)
        images_again, targets_again = collect_streamed(source, workers=workers)
        assert torch.equal(images, images_again)
        assert torch.equal(targets, targets_again)
        assert targets.tolist() == list(range(len(source)))


def test_images_that_are_too_large_to_be_stacked_by_threads_render_equally(
    samples: Samples, noise, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = Samples((*samples.images, noise(1, 30, 20)), (*samples.labels, "a"))
    images, _ = collect_streamed(mixed, workers=2)
    monkeypatch.setattr(streaming, "STACKED_BYTES", 400)  # a chunk of one image is stacked, others are not
    assert torch.equal(collect_streamed(mixed, workers=2)[0], images)


@pytest.mark.parametrize(
    ("count", "source", "threads"),
    [
        (1, "memory", 0),
        (33, "memory", 0),
        (33, "Pillow", 0),
        (33, "large", 2),
        (33, "large Pillow", 2),
        (1, "file", 0),
        (4, "file", 2),
    ],
)
def test_threads_are_started_only_where_they_help(
    samples: Samples, noise, monkeypatch: pytest.MonkeyPatch, count: int, source: str, threads: int
) -> None:
    started: list[int] = []

    def record(function: Any, items: Any, workers: int, ahead: int) -> Any:
        started.append(workers)
        return prefetch_map(function, items, workers, ahead)

    monkeypatch.setattr(streaming, "prefetch_map", record)
    arrays = [noise(seed, 40, 30) if "large" in source else noise(seed, 30, 20) for seed in range(count)]
    images = (
        samples.images[:count] if source == "file" else [Image.fromarray(each) if "Pillow" in source else each for each in arrays]
    )
    collect_streamed(Samples(tuple(images), ("a",) * count), workers=2, batch_size=64, cache=ImageCache(0, shrink_to=25))
    assert sum(started) == threads


def write_jpegs(folder: Path, noise: Any, sizes: Sequence[tuple[int, int]]) -> Samples:
    paths = [folder / f"{number}.jpg" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        Image.fromarray(noise(number, *size)).save(path, quality=90)
    return Samples(tuple(paths), ("a",) * len(paths))


@pytest.mark.parametrize(
    "sizes",
    [
        [(20, 30)] * 7,
        [(20, 30)] * 3 + [(30, 20)] * 2 + [(21, 30)] * 2,
        [(20, 90)] * 4,  # elongated: cropped before they are stacked
        [(80, 60)] * 4,  # shrunk
    ],
    ids=["one size", "several sizes", "elongated", "large"],
)
def test_jpeg_files_are_decoded_as_by_the_cache(tmp_path: Path, noise, sizes: list[tuple[int, int]]) -> None:
    samples = write_jpegs(tmp_path, noise, sizes)
    straight = collect_streamed(samples, workers=2, cache=ImageCache(0, shrink_to=40))
    cached = collect_streamed(samples, workers=2, cache=ImageCache(10**8, shrink_to=40))  # which keeps what it decodes
    assert torch.equal(straight[0], cached[0])
    assert torch.equal(straight[1], cached[1])


def test_files_of_one_size_are_decoded_where_they_are_uploaded_from(tmp_path: Path, noise, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    samples = write_jpegs(tmp_path, noise, [(20, 30)] * 4)
    monkeypatch.setattr(ImageCache, "get", lambda self, image: pytest.fail("decoded to memory of its own"))
    assert len(collect_streamed(samples, workers=2)[0]) == 4


@pytest.mark.parametrize(
    "convert",
    [
        lambda image, number: image,
        lambda image, number: image if number % 2 else image.convert("L"),
        lambda image, number: image if number % 2 else image.resize((31, 22)),
        lambda image, number: image.resize((80, 60)),  # shrunk
        lambda image, number: image.resize((90, 20)),  # elongated
        lambda image, number: image if number != 2 else Image.merge("RGBA", (*image.split(), image.getchannel(0))),
    ],
    ids=["one size", "gray ones", "several sizes", "large", "elongated", "transparent one"],
)
def test_pillow_images_equal_their_arrays(noise, convert: Any) -> None:
    images = [convert(Image.fromarray(noise(number, 20, 30)), number) for number in range(7)]
    arrays = [decode(image, 40) for image in images]
    from_pillow, from_arrays = (
        collect_streamed(Samples(tuple(each), ("a",) * 7), workers=2, cache=ImageCache(0, shrink_to=40))[0]
        for each in (images, arrays)
    )
    assert torch.equal(from_pillow, from_arrays)


def test_pillow_images_of_one_size_are_copied_where_they_are_uploaded_from(noise, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tuple(Image.fromarray(noise(number, 20, 30)) for number in range(4))
    monkeypatch.setattr(ImageCache, "get", lambda self, image: pytest.fail("converted to memory of its own"))
    assert len(collect_streamed(Samples(images, ("a",) * 4), workers=2)[0]) == 4


def test_closed_pillow_image_is_reported_as_elsewhere(noise) -> None:
    images = tuple(Image.fromarray(noise(number, 20, 30)) for number in range(4))
    images[2].close()
    with pytest.raises(DataError, match="not a readable image"):
        collect_streamed(Samples(images, ("a",) * 4), workers=2)


def test_damaged_file_among_others_is_reported_as_elsewhere(tmp_path: Path, noise) -> None:
    samples = write_jpegs(tmp_path, noise, [(20, 30)] * 4)
    content = samples.images[2].read_bytes()
    samples.images[2].write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError) as expected:
        ImageCache(0).get(samples.images[2])
    with pytest.raises(DataError) as reported:
        collect_streamed(samples, workers=2)
    assert str(reported.value) == str(expected.value)
    samples.images[2].write_bytes(content[:200] + bytes(20) + content[220:-2] + content[-2:])  # a damaged table or scan
    results = []
    for budget in (0, 10**8):
        try:
            results.append(collect_streamed(samples, workers=2, cache=ImageCache(budget))[0])
        except DataError as error:
            results.append(str(error))
    assert torch.equal(*results) if isinstance(results[0], torch.Tensor) else results[0] == results[1]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 20, 40])
def test_short_first_and_last_batches_have_the_same_images(noise, count: int) -> None:
    """More than two whole batches of 8 begin with 2 and 4 images and end with 2."""
    samples = Samples(tuple(noise(seed, 20, 20 + seed % 2) for seed in range(count)), ("a",) * count)
    settings = {"transform": EVAL, "cache": ImageCache(0), "batch_size": 8, "device": torch.device("cpu")}
    batches = list(iter_streamed_batches(samples, range(count), **settings, short_ends=True))
    sizes = [len(images) for images, _ in batches]
    assert max(sizes) <= 8
    assert ([*sizes[:2], *sizes[-1:]] == [2, 4, 2]) == (count > 16)
    images, targets = collect_streamed(samples, batch_size=8)
    assert torch.equal(torch.cat([images for images, _ in batches]), images)
    assert torch.cat([targets for _, targets in batches]).tolist() == targets.tolist()


@pytest.mark.parametrize(("count", "expected"), [(8, [8]), (9, [2, 4, 1, 2]), (19, [2, 4, 4, 4, 3, 2])])
def test_batches_of_files_are_halves(tmp_path: Path, noise, count: int, expected: list[int]) -> None:
    samples = write_jpegs(tmp_path, noise, [(20, 30)] * count)
    settings = {"transform": EVAL, "cache": ImageCache(0), "batch_size": 8, "device": torch.device("cpu")}
    batches = list(iter_streamed_images(samples.images, **settings, short_ends=True))
    assert [len(images) for images in batches] == expected
    assert torch.equal(torch.cat(batches), collect_streamed(samples, batch_size=8)[0])


def test_images_without_targets_are_the_same(samples: Samples) -> None:
    settings = {"transform": EVAL, "cache": ImageCache(0), "batch_size": 5, "device": torch.device("cpu")}
    assert torch.equal(torch.cat(list(iter_streamed_images(samples.images, **settings))), collect_streamed(samples)[0])
    with pytest.raises(ValueError, match="12 samples but 1 targets"):
        next(iter_streamed_batches(samples, [0], **settings))
