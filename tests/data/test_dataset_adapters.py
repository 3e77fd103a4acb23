from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from helpers import write_squares
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, random_split

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import decode
from caprompt.data.samples import Samples
from caprompt.data.sources import read_images, read_source
from caprompt.errors import DataError

Noise = Callable[..., NDArray[np.uint8]]


@pytest.fixture
def pairs(noise: Noise) -> list[tuple[NDArray[np.uint8], str]]:
    """Return four images of two classes."""
    return [(noise(0), "cat"), (noise(1), "dog"), (noise(2), "cat"), (noise(3), "dog")]


def assert_same(samples: Samples, pairs: list[tuple[NDArray[np.uint8], str]]) -> None:
    """Check images and labels, and that `predict` would get the same images."""
    assert samples.labels == tuple(label for _, label in pairs)
    for image, (pixels, _) in zip(samples.images, pairs, strict=True):
        np.testing.assert_array_equal(decode(image), pixels)


class MapStyle(Dataset[Any]):
    """A dataset of torch: no `__iter__`, and no IndexError at its end."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index % len(self.items)]


class ImageFolder(MapStyle):
    """The documented attributes of `torchvision.datasets.ImageFolder`."""

    def __init__(self, root: Path) -> None:
        self.classes = sorted(path.name for path in root.iterdir())
        self.samples = [(str(file), number) for number, name in enumerate(self.classes) for file in sorted((root / name).iterdir())]
        self.targets = [number for _, number in self.samples]
        super().__init__([(Image.open(file), number) for file, number in self.samples])


class Experience:
    """The documented attributes of an experience of Avalanche, whose dataset yields (image, label, task)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.classes_in_this_experience = [0, 1]


# -- torch -----------------------------------------------------------------------------------------------------------------


def test_map_style_dataset(pairs: list[Any]) -> None:
    assert_same(read_source(MapStyle(pairs)), pairs)
    assert len(read_images(MapStyle(pairs))) == 4


def test_numbers_are_labels_or_get_names(pairs: list[Any]) -> None:
    numbered = [(image, torch.tensor(int(label == "dog"))) for image, label in pairs]
    samples = read_source(MapStyle(numbered))
    assert (samples.labels, samples.integers) == (("0", "1", "0", "1"), {"0", "1"})
    assert_same(read_source(MapStyle(numbered), names=["cat", "dog"]), pairs)
    with_classes = MapStyle(numbered)
    with_classes.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    assert_same(read_source(with_classes), pairs)
    assert read_source(with_classes, names=["a", "b"]).classes == ("a", "b")
    assert_same(read_source(Subset(with_classes, [1, 2])), pairs[1:3])


def test_tensors_and_parts_of_a_dataset() -> None:
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    dataset = TensorDataset(pixels, torch.arange(6) % 2)
    samples = read_source(dataset)
    np.testing.assert_array_equal(decode(samples.images[4]), pixels[4].permute(1, 2, 0).numpy())
    assert samples.labels == ("0", "1") * 3
    first, _ = random_split(dataset, [2, 4])
    assert len(read_source(first)) == 2


def test_batches_are_refused(pairs: list[Any]) -> None:
    dataset = TensorDataset(torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
    with pytest.raises(DataError, match=r"a DataLoader yields batches; give its dataset, loader\.dataset"):
        read_source(DataLoader(dataset, batch_size=2))
    with pytest.raises(DataError, match="item 0 is a batch of images; give a dataset or an iterable of single pairs"):
        read_source(iter(DataLoader(dataset, batch_size=2)))


def test_image_folder_is_read_from_its_files(tmp_path: Path) -> None:
    folder = ImageFolder(write_squares(tmp_path, ["red", "blue"], each=2))
    samples = read_source(folder)
    assert samples.labels == ("blue", "blue", "red", "red")
    assert samples.images[0] == tmp_path / "blue" / "000.png"
    part = read_source(Subset(folder, [3, 0]))
    assert (part.images, part.labels) == ((tmp_path / "red" / "001.png", tmp_path / "blue" / "000.png"), ("red", "blue"))
    assert read_images(folder) == samples.images
    assert read_source(folder, names=["b", "r"]).classes == ("b", "r")


def test_experience_of_avalanche(pairs: list[Any]) -> None:
    items = [(image, int(label == "dog"), 7) for image, label in pairs]
    assert_same(read_source(Experience(MapStyle(items)), names=["cat", "dog"]), pairs)
    assert read_source(Experience(MapStyle(items))).integers == {"0", "1"}
    assert len(read_images(Experience(MapStyle(items)))) == 4


def test_real_image_folder_of_torchvision(tmp_path: Path) -> None:
    torchvision = pytest.importorskip(
        "torchvision", reason="torchvision is not installed; its ImageFolder is read by its attributes"
    )
    dataset = torchvision.datasets.ImageFolder(write_squares(tmp_path, ["red", "blue"], each=2))
    assert read_source(dataset).labels == ("blue", "blue", "red", "red")
    assert read_source(Subset(dataset, [3])).images == (tmp_path / "red" / "001.png",)


def test_real_experience_of_avalanche() -> None:
    benchmarks = pytest.importorskip("avalanche.benchmarks", reason="Avalanche is not installed; experiences are read by `dataset`")
    utils = pytest.importorskip("avalanche.benchmarks.utils", reason="Avalanche is not installed")
    items = TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 4)
    items.targets = items.tensors[1].tolist()
    dataset = utils.as_classification_dataset(items)
    stream = benchmarks.class_incremental_benchmark({"train": dataset}, num_experiences=2).train_stream
    assert sorted(name for experience in stream for name in read_source(experience).classes) == ["0", "1", "2", "3"]


# -- iterables -------------------------------------------------------------------------------------------------------------


def test_generators_lists_and_iterable_datasets(pairs: list[Any]) -> None:
    class Stream(IterableDataset[Any]):
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[Any]:
            return iter(pairs)

    for source in (
        (pair for pair in pairs),
        iter(pairs),
        pairs,
        [list(pair) for pair in pairs],
        Stream(),
        zip(*zip(*pairs, strict=True), strict=True),
    ):
        assert_same(read_source(source), pairs)
    for source in ((pair for pair in pairs), pairs, Stream(), [image for image, _ in pairs], (image for image, _ in pairs)):
        assert len(read_images(source)) == 4


def test_dictionaries_with_an_image_and_a_label(pairs: list[Any]) -> None:
    assert_same(read_source([{"image": image, "label": label} for image, label in pairs]), pairs)
    assert_same(read_source(MapStyle([{"x": image, "y": label, "id": 3} for image, label in pairs])), pairs)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "cannot read images from a int; give a folder, a CSV or JSON file"),
        (None, "cannot read images from a NoneType"),
        ({"cat": 1}, "cannot read images from a dict"),
        (["a.png", "b.png"], "item 0 is a str; every item must be a pair"),
        ([("a.png",)], "item 0 is a tuple; every item must be a pair"),
        ([{"photo": 1, "label": 2}], "item 0 has the keys photo, label; it needs 'image' and 'label'"),
        ([("a.png", "cat"), (None, "cat")], "image 1 is a NoneType"),
        ([("a.png", 1.5)], "label 0 is a float"),
        (iter([]), "no images"),
        (("a.png", "cat"), "the images are a single str"),
        ((Image.new("RGB", (8, 8)), "cat"), "the images are a single Image"),
    ],
)
def test_other_sources_raise_one_sentence(source: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_source(source)


def test_error_of_a_dataset_is_one_sentence() -> None:
    class Broken(MapStyle):
        def __getitem__(self, index: int) -> Any:
            raise OSError("disk is gone\nsorry")

    for read in (read_source, read_images):
        with pytest.raises(DataError, match=r"item 0 of the dataset cannot be read \(disk is gone\); repair or remove it"):
            read(Broken([1, 2]))


def test_images_and_labels_given_to_predict_are_refused(pairs: list[Any]) -> None:
    images, labels = zip(*pairs, strict=True)
    with pytest.raises(DataError, match="image 0 is a list"):
        read_images((list(images), list(labels)))


# -- Hugging Face ----------------------------------------------------------------------------------------------------------


def make_rows(pairs: list[tuple[NDArray[np.uint8], str]], tmp_path: Path | None = None) -> datasets.Dataset:
    """Return a dataset with an image column and a column of class labels, with images as bytes, or as files in a folder."""
    stored: list[Any] = []
    for number, (pixels, _) in enumerate(pairs):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "PNG")
        if tmp_path is None:
            stored.append({"bytes": content.getvalue(), "path": None})
        else:
            (tmp_path / f"{number}.png").write_bytes(content.getvalue())
            stored.append({"bytes": None, "path": str(tmp_path / f"{number}.png")})
    names = ["dog", "cat"]
    features = datasets.Features(
        {"photo": datasets.Image(), "coarse": datasets.ClassLabel(names=["pet"]), "kind": datasets.ClassLabel(names=names)}
    )
    columns = {"photo": stored, "coarse": [0] * len(pairs), "kind": [names.index(label) for _, label in pairs]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_hugging_face_dataset_finds_its_columns_by_type(pairs: list[Any]) -> None:
    rows = make_rows(pairs)
    samples = read_source(rows)
    assert_same(samples, pairs)
    assert all(isinstance(image, EncodedImage) for image in samples.images)
    assert len(read_images(rows)) == len(read_images(rows.remove_columns(["kind", "coarse"]))) == 4


def test_hugging_face_dataset_after_select_shuffle_and_formats(pairs: list[Any]) -> None:
    rows = make_rows(pairs)
    assert_same(read_source(rows.select([3, 0])), [pairs[3], pairs[0]])
    shuffled = rows.shuffle(seed=1)
    assert_same(read_source(shuffled), [(np.asarray(row["photo"]), ["dog", "cat"][row["kind"]]) for row in shuffled])
    assert_same(read_source(rows.with_format("numpy")), pairs)
    assert_same(read_source(rows.with_transform(lambda batch: {"nothing": [0] * len(batch["kind"])})), pairs)
    assert read_source(rows, names=["Hund", "Katze"]).classes == ("Hund", "Katze")


def test_hugging_face_dataset_of_files_on_disk(pairs: list[Any], tmp_path: Path) -> None:
    samples = read_source(make_rows(pairs, tmp_path))
    assert_same(samples, pairs)
    assert samples.images[1] == tmp_path / "1.png"


def test_hidden_labels_of_a_hugging_face_dataset_are_skipped(pairs: list[Any]) -> None:
    rows = make_rows(pairs)
    hidden = rows.map(lambda row, index: {"kind": -1 if index == 1 else row["kind"]}, with_indices=True)
    samples = read_source(hidden)
    assert_same(samples, [pairs[0], *pairs[2:]])
    assert samples.skipped == ("1 image has no label, skipped",)


def test_streamed_hugging_face_dataset(pairs: list[Any]) -> None:
    assert_same(read_source(make_rows(pairs).to_iterable_dataset()), pairs)


def test_hugging_face_dataset_without_class_labels(pairs: list[Any]) -> None:
    rows = make_rows(pairs).remove_columns(["kind", "coarse"])
    with pytest.raises(DataError, match=r"no column of labels, but photo; cast one to datasets\.ClassLabel"):
        read_source(rows)
    assert_same(read_source(rows.add_column("label", [label for _, label in pairs])), pairs)
    with pytest.raises(DataError, match="no column of images, but label"):
        read_source(datasets.Dataset.from_dict({"label": ["cat"]}))
    with pytest.raises(DataError, match=r"the splits train, test; give one of them, such as dataset\['train'\]"):
        read_source(datasets.DatasetDict({"train": rows, "test": rows}))
