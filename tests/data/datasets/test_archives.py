from __future__ import annotations

import gzip
import io
import resource
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from mutations import is_refused

from caprompt.data.datasets import _archives
from caprompt.data.datasets._archives import unpack
from caprompt.errors import DataError

FILES = {"set/a/1.jpg": b"one", "set/b/2.jpg": b"", "set/readme": b"hello" * 1000, "other.txt": b"other"}


def make_tar(path: Path, files: dict[str, bytes] = FILES, mode: str = "w:gz", *, extra: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if extra is not None:
            tar.addfile(extra)
    return path


def make_zip(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "mode"), [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tgz", "w:gz"), ("x.tar.xz", "w:xz"), ("x.zip", "")]
)
def test_top_level_folder_is_unpacked(tmp_path: Path, name: str, mode: str) -> None:
    archive = make_zip(tmp_path / name) if name.endswith("zip") else make_tar(tmp_path / name, mode=mode)
    folder = unpack(archive, tmp_path / "data" / "set")
    assert {p.relative_to(folder.parent).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        name: content for name, content in FILES.items() if name.startswith("set/")
    }
    assert [entry.name for entry in folder.parent.iterdir()] == ["set"], "no other files"
    (folder / "mine").touch()
    assert (unpack(archive, folder) / "mine").exists(), "an existing folder is left unchanged"


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "set/../../evil", "set\\..\\evil", "C:/evil"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_unsafe_paths_raise(tmp_path: Path, name: str, kind: str) -> None:
    make = make_zip if kind == "zip" else make_tar
    archive = make(tmp_path / f"x.{kind}", {"set/good": b"", name: b"evil"})
    with pytest.raises(DataError, match="would land outside"):
        unpack(archive, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_and_devices_raise(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("set/link")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(DataError, match=r"'set/link' is a link or a device"):
        unpack(make_tar(tmp_path / "x.tar.gz", extra=member), tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


def test_link_in_a_zip_raises(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("set/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="link or a device"):
        unpack(tmp_path / "x.zip", tmp_path / "data" / "set")


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_decompression_bomb_raises(tmp_path: Path, kind: str) -> None:
    make = make_zip if kind == "zip" else make_tar
    archive = make(tmp_path / f"x.{kind}", {"set/1": bytes(60_000), "set/2": bytes(60_000)})
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        unpack(archive, tmp_path / "data" / "set", max_bytes=100_000)
    assert not list((tmp_path / "data").iterdir())
    assert unpack(archive, tmp_path / "data" / "set", max_bytes=120_000).is_dir()


def test_small_archives_may_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of a few bytes may unpack to FEW_BYTES, and one of more to MAX_EXPANSION times its size."""
    monkeypatch.setattr(_archives, "FEW_BYTES", 100_000)
    archive = make_tar(tmp_path / "x.tar.gz", {"set/1": bytes(150_000)})
    with pytest.raises(DataError, match="unpacks to more than 100,000 bytes"):
        unpack(archive, tmp_path / "data" / "set")
    noise = np.random.default_rng(0).bytes(150_000)
    assert unpack(make_tar(tmp_path / "x.tar.gz", {"set/1": noise}), tmp_path / "data" / "set").is_dir()


def forge_header(path: Path, kind: bytes, size: int, mode: str = "w:gz") -> Path:
    """Write an archive that begins with a header of this type and size, followed by zeros."""
    member = tarfile.TarInfo("set/x")
    member.type = kind
    member.size = size
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"  # the size of a sparse file once it is unpacked
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    content = bytes(header) + bytes(size if size < 10**8 else 10_000)
    path.write_bytes(gzip.compress(content, 1) if mode == "w:gz" else content)
    return path


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"X"])
def test_giant_headers_are_refused_before_they_are_read(tmp_path: Path, kind: bytes) -> None:
    archive = forge_header(tmp_path / "x.tar.gz", kind, 50_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="it has a header of 50,000,000 bytes; get the official one"):
        unpack(archive, tmp_path / "data" / "set")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB
    assert not list((tmp_path / "data").iterdir())


def test_global_headers_are_limited_in_total(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number in range(4):
            text = f"{400_011} k{number}={'x' * 400_000}"  # a record states its own length, with the line feed
            member = tarfile.TarInfo("pax")
            member.type, content = tarfile.XGLTYPE, f"{text}\n".encode()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        tar.addfile(tarfile.TarInfo("set/a"))
    with pytest.raises(DataError, match="it has a header of"):
        unpack(tmp_path / "x.tar", tmp_path / "data" / "set")


def test_long_names_are_still_read(tmp_path: Path) -> None:
    names = {"set/" + "long folder/" * 15 + f"{number}": b"abc" for number in range(3)}
    for number, format in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        with tarfile.open(tmp_path / "x.tar", "w", format=format) as tar:
            for name, content in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        folder = unpack(tmp_path / "x.tar", tmp_path / str(number) / "set")
        assert {path.relative_to(folder.parent).as_posix() for path in folder.rglob("*") if path.is_file()} == set(names)


def test_sparse_files_raise(tmp_path: Path) -> None:
    """A header alone says that a file has gigabytes of zeros."""
    with pytest.raises(DataError, match="its member 'set/x' is a sparse file; get the official one"):
        unpack(forge_header(tmp_path / "x.tar", tarfile.GNUTYPE_SPARSE, 1000, "w"), tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize(("name", "mode"), [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tar.xz", "w:xz"), ("x.zip", "")])
def test_truncated_archive_raises(tmp_path: Path, name: str, mode: str) -> None:
    files = {f"set/{i}": np.random.default_rng(i).bytes(20_000) for i in range(5)}
    archive = make_zip(tmp_path / name, files) if name.endswith("zip") else make_tar(tmp_path / name, files, mode)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(
        DataError, match=rf"the archive '.*{name}' is damaged or incomplete \([\d,]+ bytes, .*\); download it again"
    ):
        unpack(archive, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir()), "no partially unpacked files remain"


def test_other_file_raises(tmp_path: Path) -> None:
    for name in ("x.tar.gz", "x.zip"):
        (tmp_path / name).write_bytes(b"<html>404</html>")
        with pytest.raises(DataError, match="damaged or incomplete"):
            unpack(tmp_path / name, tmp_path / "set")


def test_archive_of_another_dataset_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains no folder 'cub', but other.txt, set; get the official one"):
        unpack(make_tar(tmp_path / "x.tgz"), tmp_path / "data" / "cub")


def test_duplicate_name_raises(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("set/same"))
    with pytest.raises(DataError, match="it contains 'same' twice"):
        unpack(tmp_path / "x.tar", tmp_path / "set")


def test_too_many_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archives, "MAX_FILES", 3)
    with pytest.raises(DataError, match="contains more than 3 files"):
        unpack(make_tar(tmp_path / "x.tgz"), tmp_path / "set")


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["set/" + "x" * 300], "file name too long"),
        (["set/" + "a/" * 3000 + "x"], "file name too long"),
        (["set/a", "set/a/b"], "it contains 'a' twice"),
        (["set/a/b", "set/a"], "it contains 'a' twice"),
        (["set"], "contains no folder 'set'"),
        (["../two\nlines"], "would land outside"),
    ],
)
def test_names_that_no_folder_can_have_raise(tmp_path: Path, names: list[str], message: str, kind: str) -> None:
    make = make_zip if kind == "zip" else make_tar
    archive = make(tmp_path / f"x.{kind}", dict.fromkeys(names, b"abc"))
    with pytest.raises(DataError, match=message) as error:
        unpack(archive, tmp_path / "data" / "set")
    assert len(str(error.value).splitlines()) == 1
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize(("name", "mode"), [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tar.xz", "w:xz"), ("x.zip", "")])
def test_altered_archives_are_unpacked_or_raise_one_sentence(tmp_path: Path, name: str, mode: str) -> None:
    archive = make_zip(tmp_path / name) if name.endswith("zip") else make_tar(tmp_path / name, mode=mode)
    original = archive.read_bytes()
    for seed in range(200):
        rng, content = Random(seed), bytearray(original)
        for _ in range(rng.choice((1, 2, 8))):
            content[rng.randrange(len(content))] = rng.choice((0, 255, rng.randrange(256)))
        archive.write_bytes(content)
        is_refused(lambda: unpack(archive, tmp_path / "data" / "set"), f"{name}, seed {seed}")
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
