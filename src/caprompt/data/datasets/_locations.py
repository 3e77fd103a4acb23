"""Locations of datasets.

They are stored in $CAPROMPT_DATA or in ~/.cache/caprompt/data, as their official folder or archive.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from caprompt.data.datasets._archives import unpack
from caprompt.data.datasets._download import Progress, download
from caprompt.errors import DataError
from caprompt.utils.paths import expand_user

__all__ = ["OfficialFiles", "fetch_dataset", "find_dataset", "get_data_folders", "unpack_dataset"]


@dataclass(frozen=True)
class OfficialFiles:
    """A dataset as published: `archive` unpacks to `folder`; `also` names alternative folders."""

    name: str
    title: str
    folder: str
    archive: str
    url: str
    checksum: str
    also: tuple[str, ...] = ()


def get_data_folders() -> tuple[Path, ...]:
    """Return the folders that are searched for datasets; downloads go to the first."""
    custom = os.environ.get("CAPROMPT_DATA")
    cache = Path.home() / ".cache" / "caprompt" / "data"
    return (expand_user(custom), cache) if custom else (cache,)


def find_dataset(official: OfficialFiles) -> Path | None:
    """Return the path of the dataset's folder, else of its archive, else None."""
    names = (official.folder, *official.also, official.archive)
    paths = (folder / name for name in names for folder in get_data_folders())
    return next((path for path in paths if path.is_dir() or path.is_file()), None)


def unpack_dataset(official: OfficialFiles) -> Path:
    """Return the dataset's folder, unpacking the archive first where there is no folder yet."""
    path = find_dataset(official)
    if path is None:
        raise DataError(
            f"{official.title} was not found; download it with 'caprompt datasets --download {official.name}', "
            f"or put '{official.archive}' from {official.url} (or its folder '{official.folder}') into '{get_data_folders()[0]}'"
        )
    if path.is_dir():
        return path
    return unpack(path, _select_writable(path.parent) / official.folder)


def fetch_dataset(official: OfficialFiles, on_progress: Progress | None = None) -> Path:
    """Return the dataset's folder, downloading and unpacking it first where necessary."""
    if find_dataset(official) is None:
        download(official.url, get_data_folders()[0] / official.archive, official.checksum, on_progress)
    return unpack_dataset(official)


def _select_writable(folder: Path) -> Path:
    """Return `folder`, or if it is read-only, the first data folder that is writable."""
    folders = (folder, *get_data_folders())
    return next((candidate for candidate in folders if os.access(candidate, os.W_OK)), get_data_folders()[-1])
