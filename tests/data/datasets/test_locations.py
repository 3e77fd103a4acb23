from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from caprompt.data.datasets import _locations
from caprompt.data.datasets._locations import OfficialFiles, fetch_dataset, find_dataset, get_data_folders, unpack_dataset
from caprompt.errors import DataError

BIRDS = OfficialFiles("birds", "Birds", "Birds_2011", "birds.tgz", "https://example.org/birds.tgz", "md5:0", also=("small-birds",))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_custom_folder_precedes_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_data_folders() == (cache,)
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path / "custom"))
    assert get_data_folders() == (tmp_path / "custom", cache)
    (cache / "Birds_2011").mkdir(parents=True)
    assert find_dataset(BIRDS) == cache / "Birds_2011"
    (tmp_path / "custom" / "Birds_2011").mkdir(parents=True)
    assert find_dataset(BIRDS) == tmp_path / "custom" / "Birds_2011"


def test_missing_dataset_raises_with_instructions(cache: Path) -> None:
    assert find_dataset(BIRDS) is None
    with pytest.raises(DataError) as raised:
        unpack_dataset(BIRDS)
    assert str(raised.value) == (
        "Birds was not found; download it with 'caprompt datasets --download birds', or put 'birds.tgz' from "
        f"https://example.org/birds.tgz (or its folder 'Birds_2011') into '{cache}'"
    )


def test_archive_is_unpacked_once_next_to_it(cache: Path) -> None:
    assert find_dataset(BIRDS) is None
    archive = write_archive(cache)
    assert find_dataset(BIRDS) == archive
    assert unpack_dataset(BIRDS) == cache / "Birds_2011"
    archive.unlink()
    assert (unpack_dataset(BIRDS) / "a.txt").read_text() == "a"


def test_alternative_folder(cache: Path) -> None:
    (cache / "small-birds").mkdir(parents=True)
    assert unpack_dataset(BIRDS) == cache / "small-birds"


def test_fetch_downloads_only_a_missing_dataset(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Path, str]] = []

    def fake_download(url: str, target: Path, checksum: str, on_progress: object) -> Path:
        calls.append((url, target, checksum))
        return write_archive(target.parent)

    monkeypatch.setattr(_locations, "download", fake_download)
    assert fetch_dataset(BIRDS) == fetch_dataset(BIRDS) == cache / "Birds_2011"
    assert calls == [(BIRDS.url, cache / "birds.tgz", "md5:0")]
