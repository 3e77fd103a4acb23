"""CUB-200-2011 (Wah et al., 2011): 11,788 photos of 200 bird species, with the official split."""

from __future__ import annotations

from pathlib import Path

from caprompt.data.datasets._integrity import check_classes, check_count, check_files_exist
from caprompt.data.datasets._locations import OfficialFiles, unpack_dataset
from caprompt.data.samples import Samples
from caprompt.errors import DataError

__all__ = ["CUB200", "load_cub200"]

CUB200 = OfficialFiles(
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
    """Load training and test samples; classes are named like "001.Black_footed_Albatross"."""
    folder = folder or unpack_dataset(CUB200)
    names = _read_table(folder / "classes.txt")
    files = _read_table(folder / "images.txt")
    class_ids = _read_table(folder / "image_class_labels.txt", len(files))
    in_training = _read_table(folder / "train_test_split.txt", len(files))
    check_count(folder / "classes.txt", "classes", len(names), classes)
    check_count(folder / "images.txt", "images", len(files), sum(images))
    check_files_exist(folder, folder / "images.txt", [folder / "images" / file for file in files.values()])
    try:
        labels = {image_id: names[class_ids[image_id]] for image_id in files}
        training = {image_id: {"1": True, "0": False}[in_training[image_id]] for image_id in files}
    except KeyError as error:
        raise DataError(f"the tables in '{folder}' are damaged: they disagree about ID {error}; download it again") from None
    parts = [[image_id for image_id in files if training[image_id] is wanted] for wanted in (True, False)]
    train, test = (
        Samples(tuple(folder / "images" / files[image_id] for image_id in part), tuple(labels[image_id] for image_id in part))
        for part in parts
    )
    check_count(folder, "training images", len(train), images[0])
    check_classes(folder, train, test, list(names.values()))
    return train, test


def _read_table(path: Path, rows: int | None = None) -> dict[str, str]:
    """Read lines of an ID and a value."""
    if not path.is_file():
        raise DataError(f"'{path.parent}' is damaged or incomplete: it has no file '{path.name}'; download it again")
    table: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        key, _, value = line.strip().partition(" ")
        if not value or key in table or ".." in value.split("/") or value.startswith("/"):
            raise DataError(f"line {number} of '{path}' is damaged: {line[:80]!r}; download it again")
        table[key] = value
    if rows is not None:
        check_count(path, "rows", len(table), rows)
    return table
