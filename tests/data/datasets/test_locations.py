from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from caprompt.data.datasets import _locations
from caprompt.data.datasets._locations import Official, data_folders, fetch, located, opened
from caprompt.errors import DataError

BIRDS = Official("birds", "Birds", "Birds_2011", "birds.tgz", "https://example.org/birds.tgz", "md5:0", also=("small-birds",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CAPROMPT_DATA", raising=False)
    return tmp_path / "home" / ".cache" / "caprompt" / "data"


def write_archive(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Birds_2011").mkdir()
    (folder / "Birds_2011" / "a.txt").write_text("a")
    with tarfile.open(folder / "birds.tgz", "w:gz") as tar:
        tar.add(folder / "Birds_2011", "Birds_2011")
    (folder / "Birds_2011" / "a.txt").unlink()
    (folder / "Birds_2011").rmdir()
    return folder / "birds.tgz"


def test_the_own_folder_goes_before_the_cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folders() == (home,)
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "own"))
    assert data_folders() == (tmp_path / "own", home)
    (home / "Birds_2011").mkdir(parents=True)
    assert located(BIRDS) == home / "Birds_2011"
    (tmp_path / "own" / "Birds_2011").mkdir(parents=True)
    assert located(BIRDS) == tmp_path / "own" / "Birds_2011"


def test_missing_says_which_file_to_put_where(home: Path) -> None:
    assert located(BIRDS) is None
    with pytest.raises(DataError) as told:
        opened(BIRDS)
    assert str(told.value) == (
        "Birds is not here; get it with 'caprompt datasets --download birds', or put 'birds.tgz' from "
        f"https://example.org/birds.tgz (or its folder 'Birds_2011') into '{home}'"
    )


def test_an_archive_is_unpacked_beside_itself_once(home: Path) -> None:
    assert located(BIRDS) is None
    archive = write_archive(home)
    assert located(BIRDS) == archive
    assert opened(BIRDS) == home / "Birds_2011"
    archive.unlink()
    assert (opened(BIRDS) / "a.txt").read_text() == "a"


def test_another_folder_in_its_place(home: Path) -> None:
    (home / "small-birds").mkdir(parents=True)
    assert opened(BIRDS) == home / "small-birds"


def test_fetch_downloads_only_what_is_not_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Path, str]] = []

    def pretend(url: str, target: Path, checksum: str, on_progress: object) -> Path:
        calls.append((url, target, checksum))
        return write_archive(target.parent)

    monkeypatch.setattr(_locations, "download", pretend)
    assert fetch(BIRDS) == fetch(BIRDS) == home / "Birds_2011"
    assert calls == [(BIRDS.url, home / "birds.tgz", "md5:0")]
