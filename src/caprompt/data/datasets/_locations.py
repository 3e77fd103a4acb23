"""Where data sets lie: in the folder $CAPROMPT_DATA, or in ~/.cache/caprompt/data, as their official folder or archive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from caprompt.data.datasets._archives import unpack
from caprompt.data.datasets._download import Progress, download
from caprompt.errors import DataError

__all__ = ["Official", "data_folders", "fetch", "located", "opened"]


@dataclass(frozen=True)
class Official:
    """A data set as its makers publish it; `folder` is what `archive` unpacks to, `also` other folders in its place."""

    name: str
    title: str
    folder: str
    archive: str
    url: str
    checksum: str
    also: tuple[str, ...] = ()


def data_folders() -> tuple[Path, ...]:
    """The folders that are searched, the first of which takes downloads."""
    own = os.environ.get("CAPROMPT_DATA")
    cache = Path.home() / ".cache" / "caprompt" / "data"
    return (Path(own).expanduser(), cache) if own else (cache,)


def located(official: Official) -> Path | None:
    """The data set's folder or else its archive, where there is one."""
    names = (official.folder, *official.also, official.archive)
    places = (place / name for name in names for place in data_folders())
    return next((path for path in places if path.is_dir() or path.is_file()), None)


def opened(official: Official) -> Path:
    """The data set's folder, unpacked first where only the archive is there."""
    found = located(official)
    if found is None:
        raise DataError(
            f"{official.title} is not here; get it with 'caprompt datasets --download {official.name}', "
            f"or put '{official.archive}' from {official.url} (or its folder '{official.folder}') into '{data_folders()[0]}'"
        )
    if found.is_dir():
        return found
    return unpack(found, _writable(found.parent) / official.folder)


def fetch(official: Official, on_progress: Progress | None = None) -> Path:
    """The data set's folder; what is not there is downloaded and unpacked first."""
    if located(official) is None:
        download(official.url, data_folders()[0] / official.archive, official.checksum, on_progress)
    return opened(official)


def _writable(folder: Path) -> Path:
    """Beside the archive; for one on a read-only disk, the first of our folders that can be written to."""
    folders = (folder, *data_folders())
    return next((place for place in folders if os.access(place, os.W_OK)), data_folders()[-1])
