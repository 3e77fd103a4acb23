from __future__ import annotations

import os
import shutil
import sys
import time
import unicodedata
import warnings
from pathlib import Path

import pytest
from helpers import square, write_squares
from PIL import Image

from caprompt.data.image_cache import ImageCache
from caprompt.data.image_folders import find_images, read_class_folders
from caprompt.data.sources import read_source
from caprompt.data.validation import validate_images
from caprompt.errors import CapromptWarning, DataError

OPENED: list[str] | None = None  # paths that were opened, while it is a list


def record_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(os.fspath(arguments[0]) if isinstance(arguments[0], (str, os.PathLike)) else "")


sys.addaudithook(record_opened)  # it cannot be removed, so it is idle but for one test


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of two images each."""
    return write_squares(tmp_path / "pets", ["red", "blue"], each=2)


# -- files that are images, and others -----------------------------------------------------------------------------------------


def test_images_are_recognized_by_content_and_others_are_named(pets: Path) -> None:
    image = Image.fromarray(square("red", 7))
    image.save(pets / "red" / "noext", "JPEG")
    image.save(pets / "red" / "x.dat", "PNG")
    image.save(pets / "red" / "y.tga")
    (pets / "red" / "a.txt").write_text("notes")
    (pets / "blue" / "c.mov").write_bytes(b"\0\0\0\x14ftypqt  ")
    (pets / "blue" / ".DS_Store").write_bytes(b"x")
    samples = read_source(pets)
    assert samples.counts() == {"blue": 2, "red": 5}
    assert samples.skipped == ("ignored 2 files that are not images in a known format: blue/c.mov, red/a.txt",)
    assert len(validate_images(samples, ImageCache())) == 7


def test_of_many_ignored_files_a_dozen_is_named(pets: Path) -> None:
    for number in range(30):
        (pets / "red" / f"{number}.txt").write_text("notes")
    (message,) = read_source(pets).skipped
    assert message.startswith("ignored 30 files that are not images in a known format: red/0.txt, red/1.txt, ")
    assert message.endswith("red/11.txt and 18 more")


def test_only_files_with_unknown_suffixes_are_opened(pets: Path) -> None:
    global OPENED
    (pets / "red" / "a.txt").write_text("notes")
    OPENED = []
    try:
        find_images(pets)
        opened = [Path(path).name for path in OPENED]
    finally:
        OPENED = None
    assert "a.txt" in opened
    assert not [name for name in opened if name.endswith(".png")]


@pytest.mark.slow
def test_many_files_are_listed_in_seconds(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        for image in range(1000):
            (tmp_path / str(number) / f"{image}.png").touch()
    start = time.process_time()
    assert len(read_class_folders(tmp_path)) == 20_000
    assert time.process_time() - start < 5


# -- links and special files ---------------------------------------------------------------------------------------------------


def test_dangling_link_is_named_like_an_unreadable_image(pets: Path) -> None:
    (pets / "red" / "gone.png").symlink_to(pets / "nowhere.png")
    with pytest.raises(DataError, match=r"no image file '.*gone\.png' \(it is a link to a file that does not exist\); remove it"):
        validate_images(read_source(pets), ImageCache())
    valid = validate_images(read_source(pets), ImageCache(), skip_bad=True)
    assert valid.counts() == {"blue": 2, "red": 2}
    assert "gone.png" in valid.skipped[0]


@pytest.mark.parametrize("name", ["pipe.png", "pipe"])
def test_fifo_does_not_hang(pets: Path, name: str) -> None:
    os.mkfifo(pets / "red" / name)
    if name == "pipe":
        assert read_source(pets).skipped == ("ignored 1 file that is not an image in a known format: red/pipe",)
        return
    with pytest.raises(DataError, match=r"pipe\.png' is not a readable image \(it is not a regular file\)"):
        validate_images(read_source(pets), ImageCache())


def test_links_to_folders_are_followed_once(pets: Path, tmp_path: Path) -> None:
    write_squares(tmp_path / "elsewhere", ["cyan"], each=3)
    (pets / "red" / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (pets / "red" / "loop").symlink_to(pets / "red", target_is_directory=True)
    (pets / "red" / "self").symlink_to("self")
    samples = read_source(pets)
    assert samples.counts() == {"blue": 2, "red": 5}
    assert samples.skipped == ("ignored 1 file that is not an image in a known format: red/self",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folder_that_may_not_be_read_raises(pets: Path) -> None:
    (pets / "red").chmod(0)
    try:
        with pytest.raises(DataError, match="cannot be read"):
            read_source(pets)
    finally:
        (pets / "red").chmod(0o700)


# -- one level too high or too deep --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "valid"), ("train", "val", "test")])
def test_folder_of_splits_is_refused_with_the_path_of_the_training_images(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        write_squares(tmp_path / "data" / name, ["red", "blue"], each=1)
    message = rf"data' is divided into .*, not into classes; give one of these folders, such as '.*data/{names[0]}'"
    with pytest.raises(DataError, match=message):
        read_source(tmp_path / "data")
    with pytest.raises(DataError, match=message):
        read_source(tmp_path)  # two levels too high
    assert read_source(tmp_path / "data" / names[0]).classes == ("blue", "red")


def test_splits_without_class_folders_are_refused(tmp_path: Path) -> None:
    write_squares(tmp_path, ["red", "blue"], each=1)
    (tmp_path / "red").rename(tmp_path / "train")
    (tmp_path / "blue").rename(tmp_path / "test")
    with pytest.raises(DataError, match=r"sort the images of '.*/train' into one folder per class"):
        read_source(tmp_path)


@pytest.mark.parametrize(
    "layout",
    [
        ["cats/2023", "dogs/2023"],
        ["cats/2023", "cats/2024", "dogs/2023", "dogs/2024"],
        ["cats/2023/may", "dogs"],
        ["cats/images", "dogs/images"],  # as Tiny ImageNet has it
        ["train/2023", "bus/2023"],
        ["train/steam", "train/electric"],  # more images of the class "train"
        ["cats/train", "cats/test", "dogs/train", "dogs/test"],
        ["cats/indoor", "dogs/outdoor"],
        ["cats/indoor", "cats/outdoor"],
    ],
    ids=" ".join,
)
def test_folders_within_classes_are_legal(tmp_path: Path, layout: list[str]) -> None:
    for number, folder in enumerate(layout):
        (tmp_path / folder).mkdir(parents=True)
        Image.fromarray(square("red", number)).save(tmp_path / folder / "0.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        samples = read_source(tmp_path)
    assert samples.classes == tuple(sorted({folder.split("/")[0] for folder in layout}))
    assert len(samples) == len(layout)


def test_equal_folders_within_all_classes_are_legal_with_a_warning(tmp_path: Path) -> None:
    for site in ("site a", "site b"):
        write_squares(tmp_path / site, ["red", "blue"], each=1)
    with pytest.warns(
        CapromptWarning, match=r"is read as 2 classes \(site a, site b\).* the folders .*red.*; if these are classes"
    ):
        samples = read_source(tmp_path)
    assert samples.classes == ("site a", "site b")


def test_folder_of_one_class_is_refused_with_the_path_above(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"red' has no class folders; it looks like the folder of one class: give '.*pets'"):
        read_source(pets / "red")
    monkeypatch.chdir(pets / "red")
    with pytest.raises(DataError, match=r"'\.' has no class folders; it looks like the folder of one class: give '.*pets'"):
        read_source(".")
    shutil.rmtree(pets / "blue")
    with pytest.raises(DataError, match="put its images into one folder per class"):
        read_source(pets / "red")


# -- Unicode -------------------------------------------------------------------------------------------------------------------


def test_composed_and_decomposed_names_are_one_class(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    for number, name in enumerate((composed, decomposed)):
        (tmp_path / name).mkdir()
        Image.fromarray(square("red", number)).save(tmp_path / name / f"{number}.png")
    samples = read_source(tmp_path)
    assert samples.classes == (composed,)
    assert len(validate_images(samples, ImageCache())) == 2
