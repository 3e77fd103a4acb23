"""Image files in folders: listing them, and reading a folder per class.

Files are images by their suffix or, where that is unknown, by their first bytes (`formats`). Hidden files and folders, whose
names start with a dot, are left out. Links to folders are followed; a folder that is reached twice is read once.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from caprompt.data.class_names import check_class_name, natural_key, normalize_class_name
from caprompt.data.formats import FORMAT_LIST, identify_format, is_image_name
from caprompt.data.images import ImageInput
from caprompt.data.samples import Samples
from caprompt.errors import CapromptWarning, DataError
from caprompt.utils.text import join_names

__all__ = ["FoundFiles", "describe_ignored", "find_images", "read_class_folders"]

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})
TRAINING_SPLITS = frozenset({"train", "training"})  # a train is also a class of vehicles
MAX_SIBLINGS = 100  # folders that are looked into for a better error message


@dataclass(frozen=True)
class FoundFiles:
    """The files below a folder, each list in natural order."""

    images: list[Path]
    ignored: list[Path]  # files that are not images


def find_images(folder: Path) -> FoundFiles:
    """List the files below a folder at any depth.

    Whatever has the suffix of an image counts as one, also a link to a file that does not exist: decoding it says what is wrong.
    """
    images: list[str] = []
    ignored: list[str] = []
    for entry in _walk_files(folder):
        (images if _is_image(entry) else ignored).append(entry.path)
    return FoundFiles(_sort(images, folder), _sort(ignored, folder))


def read_class_folders(root: Path) -> Samples:
    """Read a folder with a sub-folder of images per class; the images of a class may be in further folders below.

    Two mistakes are recognized. A folder one level too high is refused if its sub-folders are all named like splits (train,
    test, val), or if its only sub-folder is divided like that. Any other name may be that of a class, and equal folders within
    the classes are a usual way to sort photos (cats/indoor, dogs/indoor); so where all images are in folders within the
    classes, and two or more of these folders occur in several classes, there is only a warning, and none if their names have
    digits as dates have. A folder one level too deep has images but no sub-folders; it is refused, and if folders next to it
    have images too, the message names the folder above.
    """
    with os.scandir(root) as scanned:
        entries = sorted((e for e in scanned if not e.name.startswith(".")), key=lambda e: natural_key(e.name))
    folders = [Path(entry.path) for entry in entries if _is_dir(entry)]
    num_loose = sum(_is_image(entry) for entry in entries if not _is_dir(entry))
    if not folders:
        raise DataError(f"'{root}' has no class folders; {_advise_without_folders(root, num_loose)}")
    for folder in folders:
        check_class_name(folder.name)
    found = {folder: find_images(folder) for folder in folders}
    _check_level(root, found)

    images: list[ImageInput] = []
    labels: list[str] = []
    for folder, files in found.items():
        if not files.images:
            raise DataError(f"the class folder '{folder}' has no images ({FORMAT_LIST}); add some or remove the folder")
        images += files.images
        labels += [normalize_class_name(folder.name)] * len(files.images)
    skipped = [f"{num_loose} image(s) directly in '{root}' belong to no class and were skipped"] * bool(num_loose)
    skipped += describe_ignored([path.relative_to(root) for files in found.values() for path in files.ignored])
    return Samples(tuple(images), tuple(labels), tuple(skipped))


def describe_ignored(paths: Sequence[Path]) -> list[str]:
    """Return a sentence about files that are not images, or none.

    >>> describe_ignored([Path("cats/a.txt"), Path("b.pdf")]), describe_ignored([])
    (['ignored 2 files that are not images in a known format: cats/a.txt, b.pdf'], [])
    """
    if not paths:
        return []
    what = "1 file that is not an image" if len(paths) == 1 else f"{len(paths):,} files that are not images"
    return [f"ignored {what} in a known format: {join_names([path.as_posix() for path in paths])}"]


# -- files -----------------------------------------------------------------------------------------------------------------


def _walk_files(root: Path) -> Iterator[os.DirEntry[str]]:
    pending, seen = [str(root)], set()
    while pending:
        folder = pending.pop()
        status = os.stat(folder)  # noqa: PTH116  # a path per folder and none per file
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_dir(entry):
                    pending.append(entry.path)
                else:
                    yield entry


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False


def _is_image(entry: os.DirEntry[str]) -> bool:
    return is_image_name(entry.name) or _is_image_path(Path(entry.path))


def _is_image_path(path: Path) -> bool:
    """Return whether a file is an image; only regular files of unknown suffixes are opened."""
    if is_image_name(path.name):
        return True
    try:
        return path.is_file() and identify_format(path) is not None
    except OSError:  # such as a link to itself
        return False


def _sort(paths: list[str], folder: Path) -> list[Path]:
    """Return the paths of files below a folder in natural order."""
    start = len(str(folder))  # what all of them begin with makes no difference
    return [Path(path) for path in sorted(paths, key=lambda path: natural_key(path[start:].replace(os.sep, "/")))]


# -- levels ----------------------------------------------------------------------------------------------------------------


def _check_level(root: Path, found: Mapping[Path, FoundFiles]) -> None:
    """Refuse a folder of splits, and warn where sub-folders of the classes look like the classes."""
    are_splits = _are_splits([folder.name for folder in found])
    if not are_splits and len(found) > 1 and any(_has_direct_image(folder, files.images) for folder, files in found.items()):
        return
    inside = {folder: _group_by_subfolder(folder, files.images) for folder, files in found.items()}
    if are_splits:
        _refuse_splits(root, inside)
    if len(found) == 1:
        (folder,) = found
        deeper = {folder / name: _group_by_subfolder(folder / name, paths) for name, paths in inside[folder].items() if name}
        if _are_splits(list(inside[folder])) and not any("" in groups for groups in deeper.values()):
            _refuse_splits(folder, deeper)
    else:
        counts = Counter(name for groups in inside.values() for name in groups)
        shared = [name for name, count in counts.items() if count > 1 and not any(map(str.isdigit, name)) and not _is_split(name)]
        if len(shared) > 1:
            names = join_names([folder.name for folder in found], 3)
            warnings.warn(
                f"'{root}' is read as {len(found)} classes ({names}), and several of them have the folders "
                f"{join_names(shared, 3)}; if these are classes, give '{next(iter(found))}' instead",
                CapromptWarning,
                stacklevel=2,
            )


def _has_direct_image(folder: Path, images: Sequence[Path]) -> bool:
    return any(image.parent == folder for image in images)


def _group_by_subfolder(folder: Path, images: Sequence[Path]) -> dict[str, list[Path]]:
    """Group images by the folder right below `folder` that they are in, those directly in `folder` under an empty name."""
    groups: dict[str, list[Path]] = {}
    start = len(str(folder)) + 1
    for image in images:
        first, separator, _ = str(image)[start:].partition(os.sep)
        groups.setdefault(first if separator else "", []).append(image)
    return groups


def _is_split(name: str) -> bool:
    return name.lower() in SPLITS


def _are_splits(names: Sequence[str]) -> bool:
    """Return whether folders of these names are splits of a dataset; 'train' alone may be a class.

    >>> _are_splits(["Train", "val"]), _are_splits(["train", "bus"]), _are_splits(["train"]), _are_splits([])
    (True, False, False, False)
    """
    return all(map(_is_split, names)) and any(name.lower() not in TRAINING_SPLITS for name in names)


def _refuse_splits(root: Path, inside: Mapping[Path, Mapping[str, object]]) -> None:
    """Raise with the path of a split, preferably of the training images, and what to do with it."""
    names = join_names([folder.name for folder in inside])
    chosen = min(inside, key=lambda folder: folder.name.lower() not in TRAINING_SPLITS)
    advice = f"give one of these folders, such as '{chosen}'"
    if set(inside[chosen]) == {""}:
        advice = f"sort the images of '{chosen}' into one folder per class, and give that folder"
    raise DataError(f"'{root}' is divided into {names}, not into classes; {advice}")


def _advise_without_folders(root: Path, num_images: int) -> str:
    if not num_images:
        return "make one folder of images per class in it"
    above = root.parent if root.name not in ("", "..") else root.resolve().parent
    if _has_image_folders(above, root):
        return f"it looks like the folder of one class: give '{above}', in which there is a folder per class"
    return "put its images into one folder per class"


def _has_image_folders(above: Path, besides: Path) -> bool:
    """Return whether another folder in this one has images directly in it."""
    try:
        folders = (path for path in above.iterdir() if path.is_dir() and not path.name.startswith("."))
        others = (path for path in islice(folders, MAX_SIBLINGS) if not path.samefile(besides))
        return any(is_image_name(file.name) for other in others for file in other.iterdir())
    except OSError:  # a folder that may not be read
        return False
