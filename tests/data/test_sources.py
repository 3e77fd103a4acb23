from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import write_squares
from PIL import Image

from caprompt.data.datasets.registry import load_dataset
from caprompt.data.image_cache import ImageCache
from caprompt.data.samples import Samples
from caprompt.data.sources import collect_images, list_images, read_source
from caprompt.data.validation import validate_images
from caprompt.errors import CapromptWarning, DataError, InputError


def test_folder_per_class_in_natural_order(photos: Path) -> None:
    samples = read_source(str(photos))
    assert samples.classes == ("class1", "class2", "class10")
    assert samples.labels == ("class1",) * 4 + ("class2",) * 4 + ("class10",) * 4
    assert samples.images[:2] == (photos / "class1" / "0.png", photos / "class1" / "1.png")
    assert samples.skipped == ()
    assert read_source(samples) is samples


def test_nested_files_are_listed_and_hidden_or_other_files_are_not(photos: Path) -> None:
    deep = photos / "class1" / "2024" / "may"
    deep.mkdir(parents=True)
    shutil.copy(photos / "class1" / "0.png", deep / "UPPER.PNG")
    for name in (".hidden.png", "notes.txt", ".cache/x.png", "../.git/x.png"):
        (photos / "class1" / name).parent.mkdir(exist_ok=True)
        (photos / "class1" / name).write_bytes(b"")
    names = [path.name for path in read_source(photos).select_classes(["class1"]).images]
    assert names == ["0.png", "1.png", "2.png", "3.png", "UPPER.PNG"]


def test_images_next_to_class_folders_are_reported(photos: Path) -> None:
    (photos / "stray.jpg").write_bytes(b"")
    samples = read_source(photos)
    assert len(samples) == 12
    assert len(samples.skipped) == 1
    assert "1 image(s) directly in" in samples.skipped[0]


def test_invalid_folders_raise(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder or CSV file '.*nowhere'"):
        read_source(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"give '.*photos', in which there is a folder per class"):
        read_source(photos / "class1")
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="void' has no class folders; make one folder"):
        read_source(tmp_path / "void")
    (photos / "hollow").mkdir()
    with pytest.raises(DataError, match=r"class folder '.*hollow' has no images"):
        read_source(photos)
    with pytest.raises(DataError, match=r"neither a folder nor a .csv"):
        read_source(photos / "class1" / "0.png")


def test_folder_with_invalid_class_name_raises(photos: Path) -> None:
    (photos / "what?").mkdir()
    with pytest.raises(DataError, match=r"'what\?' cannot be a class name"):
        read_source(photos)


@pytest.mark.parametrize(
    "text",
    [
        "path,label\nclass1/0.png,cat\n\nclass2/0.png,sea lion\n",
        "class1/0.png,cat\nclass2/0.png,sea lion\n",
        '\ufefflabel,Path,note\ncat,class1/0.png,x\n"sea lion","class2/0.png",y\n',
        '"class1/0.png","cat"\r\n"class2/0.png", sea lion\r\n',
    ],
)
def test_csv_files(photos: Path, text: str) -> None:
    (photos / "list.csv").write_text(text, encoding="utf-8")
    samples = read_source(photos / "list.csv")
    assert samples.labels == ("cat", "sea lion")
    assert samples.images == (photos / "class1" / "0.png", photos / "class2" / "0.png")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\nb.png\n", r"line 3 of '.*list.csv' .* 1 column\(s\) where 2"),
        ("a.png;cat\n", "line 1"),
        ("a.png,cat\n,dog\n", "line 2 .*path is empty"),
        ("a.png,cat\nb.png,\n", "line 2 .*class name"),
        ("a.png,cat\nb.png,d/og\n", "line 2 .*'d/og'"),
        ('a.png,"cat', "line 1"),
        ("path,label\n", "lists no images"),
    ],
)
def test_invalid_csv_rows_raise(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_source(tmp_path / "list.csv")


def test_csv_that_is_not_text_raises(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(DataError, match="UTF-8"):
        read_source(tmp_path / "list.csv")


def test_arrays_pillow_images_and_paths_in_memory(photos: Path, noise) -> None:
    stacked = np.stack([noise(0), noise(1)])
    samples = read_source((stacked, np.array([3, 10])))
    assert samples.labels == ("3", "10")
    np.testing.assert_array_equal(samples.images[1], noise(1))

    mixed = read_source(([noise(0), Image.fromarray(noise(1)), str(photos / "class1" / "0.png")], ["a", "b", 7]))
    assert mixed.labels == ("a", "b", "7")
    assert mixed.images[2] == photos / "class1" / "0.png"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([np.zeros((2, 2))], ["a", "b"], "1 images but 2 labels"),
        ([np.zeros((2, 2))], [1.5], "label 0 is a float"),
        ([None], ["a"], "image 0 is a NoneType"),
        ([], [], "no images"),
    ],
)
def test_invalid_pairs_raise(images: list[object], labels: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_source((images, labels))


def test_other_sources_raise() -> None:
    with pytest.raises(DataError, match="from a int"):
        read_source(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no images"):
        read_source(Samples((), ()))


def test_duplicates_are_allowed_within_a_class_but_not_across_classes(photos: Path) -> None:
    shutil.copy(photos / "class1" / "0.png", photos / "class1" / "again.png")
    assert len(validate_images(read_source(photos), ImageCache())) == 13
    shutil.copy(photos / "class1" / "0.png", photos / "class2" / "again.png")
    with pytest.raises(DataError, match=r"class1.0\.png' \(class 'class1'\) and .*again\.png' \(class 'class2'\) are the same"):
        validate_images(read_source(photos), ImageCache())


def test_list_images_searches_folders_at_any_depth_in_order(tmp_path: Path) -> None:
    write_squares(tmp_path / "a" / "deep", ["red"], each=2)
    (tmp_path / "a" / "notes.txt").write_text("x")
    with pytest.warns(CapromptWarning, match=r"notes\.txt"):
        assert [path.name for path in list_images([tmp_path / "a", Path("single.png")])] == ["000.png", "001.png", "single.png"]
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="there is no image in the folder"):
        list_images([tmp_path / "void"])
    with pytest.raises(InputError, match="no image was given"):
        list_images([])


def test_files_that_are_not_images_are_named_in_a_warning(tmp_path: Path) -> None:
    write_squares(tmp_path, ["red"], each=1)
    (tmp_path / "red" / "000.png").rename(tmp_path / "red" / "photo")
    (tmp_path / "red" / "notes.txt").write_text("x")
    with pytest.warns(CapromptWarning, match=r"ignored 1 file that is not an image in a known format: .*notes\.txt"):
        images = list_images([tmp_path])
    assert [path.name for path in images] == ["photo"]
    assert collect_images([tmp_path]) == (images, [tmp_path / "red" / "notes.txt"])


def test_csv_that_is_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(DataError, match=r"list\.csv' is neither a folder nor a \.csv or \.json file"):
        read_source(tmp_path / "list.csv")


@pytest.mark.parametrize(
    "read", [read_source, lambda path: list_images([Path(path)]), load_dataset], ids=["source", "images", "dataset"]
)
def test_home_of_an_unknown_user(read: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match="'~nosuchuser/photos' is in the home folder of a user who does not exist"):
        read("~nosuchuser/photos")
