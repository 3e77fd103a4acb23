"""CUB-200-2011 (Wah et al., 2011): 11,788 photos of 200 kinds of birds, with the official division."""

from __future__ import annotations

from pathlib import Path

from caprompt.data.datasets._integrity import check_classes, check_count, check_present
from caprompt.data.datasets._locations import Official, opened
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["CUB200", "load_cub200"]

CUB200 = Official(
    name="cub200",
    title="CUB-200-2011",
    folder="CUB_200_2011",
    archive="CUB_200_2011.tgz",
    url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    checksum="md5:97eceeb196236b17998738112f37df78",
)


def load_cub200(
    folder: Path | None = None, classes: int = 200, images: tuple[int, int] = (5_994, 5_794)
) -> tuple[Samples, Samples]:
    """Training and test images; classes are called as in classes.txt, "001.Black_footed_Albatross"."""
    folder = folder or opened(CUB200)
    names = _table(folder / "classes.txt")
    files = _table(folder / "images.txt")
    class_of = _table(folder / "image_class_labels.txt", len(files))
    in_training = _table(folder / "train_test_split.txt", len(files))
    check_count(folder / "classes.txt", "classes", len(names), classes)
    check_count(folder / "images.txt", "images", len(files), sum(images))
    check_present(folder, folder / "images.txt", [folder / "images" / file for file in files.values()])
    try:
        labels = {number: names[class_of[number]] for number in files}
        training = {number: {"1": True, "0": False}[in_training[number]] for number in files}
    except KeyError as error:
        raise DataError(f"the tables in '{folder}' are damaged: they do not agree about the number {error}; get it anew") from None
    parts = [[number for number in files if training[number] is wanted] for wanted in (True, False)]
    train, test = (
        Samples(tuple(folder / "images" / files[number] for number in part), tuple(labels[number] for number in part))
        for part in parts
    )
    check_count(folder, "training images", len(train), images[0])
    check_classes(folder, train, test, list(names.values()))
    return train, test


def _table(path: Path, rows: int | None = None) -> dict[str, str]:
    """Lines of a number and what it stands for."""
    if not path.is_file():
        raise DataError(f"'{path.parent}' is damaged or incomplete: there is no file '{path.name}' in it; get it anew")
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        key, _, value = line.strip().partition(" ")
        if not value or key in found or ".." in value.split("/") or value.startswith("/"):
            raise DataError(f"line {number} of '{path}' is damaged: {line[:80]!r}; get it anew")
        found[key] = value
    if rows is not None:
        check_count(path, "rows", len(found), rows)
    return found
