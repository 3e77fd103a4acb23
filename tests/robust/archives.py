"""Damaged archives of datasets (tar, compressed tar, zip) with hostile members, and pickles of arrays as CIFAR-100 has."""

from __future__ import annotations

import gzip
import io
import pickle
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from helpers import read_tree

from caprompt.data.datasets._archives import unpack
from caprompt.data.datasets._array_pickle import read_array_pickle
from robust.attack import Attack, InvalidError, LostError
from robust.damage import mutate_bytes

FILES = {"set/a/1.jpg": b"one" * 50, "set/b/2.jpg": b"", "set/readme": b"hello" * 1000, "other.txt": b"other"}
MODES = {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.xz": "w:xz", "tar.bz2": "w:bz2"}
KINDS = (*MODES, "zip", "pickle", "pickle")
NAMES = (
    "/etc/evil",
    "../evil",
    "set/../../evil",
    "set\\..\\evil",
    "C:/evil",
    "set/" + "x" * 300,
    "set/" + "a/" * 2000 + "x",
    "set/two\nlines",
    "set/\x1b[31mred",
    "set/a/1.jpg",
    "set/a",
    "set",
    "",
    ".",
    "set/nul\0byte",
    "set/caf\udce9",
)
HUGE = 120_000_000  # bytes that compress to a few


def prepare(folder: Path) -> dict[str, bytes]:
    """Return an archive of every kind, and a pickle of arrays."""
    archives = {kind: make_tar(FILES, mode) for kind, mode in MODES.items()}
    arrays = {
        b"data": np.arange(3 * 48, dtype=np.uint8).reshape(3, 48),
        b"fine_labels": [1, 2, 3],
        b"filenames": [b"a", b"b", b"c"],
    }
    return {**archives, "zip": make_zip(FILES), "pickle": pickle.dumps(arrays, protocol=2)}


def make_tar(files: dict[str, bytes], mode: str, extra: tarfile.TarInfo | None = None, data: bytes = b"") -> bytes:
    """Return a tar archive, with one more member of any kind."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
        for name, own in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(own)
            tar.addfile(member, io.BytesIO(own))
        if extra is not None:
            extra.size = len(data)
            tar.addfile(extra, io.BytesIO(data))
    return content.getvalue()


def make_zip(files: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, own in files.items():
            packed.writestr(name, own)
    return content.getvalue()


def damage(archives: dict[str, bytes], folder: Path, rng: Random, number: int) -> str:
    """Write one damaged archive, or one with a hostile member."""
    kind = KINDS[number % len(KINDS)]
    path = folder / f"set.{kind}"
    if rng.random() < 0.6:
        content, note = mutate_bytes(archives[kind], rng.choice(list(archives.values())), rng, 512)
    elif kind == "pickle":
        name = rng.choice(sorted(PICKLES))
        content, note = PICKLES[name](), name
    elif kind == "zip":
        content, note = _make_hostile_zip(rng)
    else:
        content, note = _make_hostile_tar(MODES[kind], rng)
    path.write_bytes(content)
    return f"{kind}: {note}"


def _make_hostile_tar(mode: str, rng: Random) -> tuple[bytes, str]:
    way = rng.choice(("name", "type", "pax", "sparse", "bomb"))
    if way == "name":
        member = tarfile.TarInfo(rng.choice(NAMES).replace("\0", "0"))
        return make_tar(FILES, mode, member, b"evil"), f"member {member.name[:60]!r}"
    if way == "type":
        member = tarfile.TarInfo("set/link")
        member.type = rng.choice((b"1", b"2", b"3", b"4", b"6", b"7", b"L", b"K", b"S", b"x", b"g", b"X", b"V", b"\0", b"z"))
        member.linkname = rng.choice(("/etc/passwd", "../../x", "set/a"))
        return make_tar(FILES, mode, member, rng.choice((b"", b"12 path=../x\n", b"x" * 3000))), f"member of type {member.type!r}"
    member = tarfile.TarInfo("set/large")
    if way == "pax":
        member.type = rng.choice((b"x", b"g", b"L", b"K", b"X"))
    content = make_tar({}, "w", member, b"")
    header = bytearray(content[:512])
    size = rng.choice((HUGE, 10**9, 2**33, 2**62)) if way != "bomb" else HUGE
    header[124:136] = f"{size:011o}\0".encode() if size < 2**33 else b"\x80" + size.to_bytes(11, "big")
    if way == "sparse":
        header[156:157], header[483:495] = b"S", f"{rng.choice((HUGE, 8**11 - 1)):011o}\0".encode()
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return _compress(bytes(header), size, mode), f"{way} of {size:,} bytes, type {header[156:157]!r}"


def _compress(header: bytes, size: int, mode: str) -> bytes:
    """Return an archive that begins with a header, followed by as many zeros as it says, up to some hundred megabytes."""
    if mode != "w:gz":
        return header + bytes(4096)
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1) as packed:
        packed.write(header)
        for _ in range(min(size, HUGE) // 10**6):
            packed.write(bytes(10**6))
    return content.getvalue()


def _make_hostile_zip(rng: Random) -> tuple[bytes, str]:
    content, way = io.BytesIO(), rng.choice(("name", "type", "bomb", "forged"))
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("set/good", b"good")
        member = zipfile.ZipInfo(rng.choice(NAMES).encode(errors="replace").decode() if way == "name" else "set/x")
        if way == "type":
            kinds = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)
            member.external_attr = (rng.choice(kinds) | 0o777) << 16
        packed.writestr(member, bytes(HUGE) if way == "bomb" else b"/etc/passwd", zipfile.ZIP_DEFLATED)
    changed = bytearray(content.getvalue())
    if way == "forged":  # sizes in the central directory
        start = changed.rfind(b"PK\x01\x02")
        place = rng.choice((10, 20, 24, 28, 30, 42))
        changed[start + place : start + place + 4] = struct.pack("<I", rng.choice((0, 1, 99, 0x7FFFFFFF, 0xFFFFFFFF)))
    return bytes(changed), way


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code of a file was run",))


PICKLES: dict[str, Callable[[], bytes]] = {
    "code": lambda: pickle.dumps(_Harmful()),
    "code among arrays": lambda: pickle.dumps({b"data": np.zeros(3), "x": _Harmful()}),
    "huge memo": lambda: b"\x80\x02}r\xff\xff\xff\x7f.",
    "huge bytes": lambda: b"\x80\x05\x8e" + struct.pack("<Q", 2**40) + b".",
    "huge bytearray": lambda: b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "huge long": lambda: b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "huge frame": lambda: b"\x80\x04\x95" + struct.pack("<Q", 2**50) + b"}.",
    "lists of one another": lambda: b"\x80\x02]q\x00" + b"(h\x00h\x00h\x00e" * 50 + b".",
    "doubling": lambda: b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b".",
    "contains itself": lambda: b"\x80\x02}q\x00U\x01ah\x00s.",
    "deeply nested": lambda: b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "objects": lambda: pickle.dumps({b"data": np.array([{}, None], dtype=object)}),
    "old strings": lambda: pickle.dumps({b"data": np.array(["x", "y"])}),
    "huge integer text": lambda: b"I" + b"9" * 100_000 + b"\n.",
}


def use(_: object, folder: Path) -> None:
    """Unpack the archive, or read the pickle; nothing may land outside, and a refused one must leave nothing behind."""
    (path,) = folder.iterdir()
    if path.suffix == ".pickle":
        read_array_pickle(path)
        return
    target = folder / "data" / "set"
    try:
        unpack(path, target)
    except BaseException:
        left = [each.name for each in folder.rglob("*") if each not in (path, folder / "data")]
        if left:
            raise LostError(f"a refused archive left {left[:5]}") from None
        raise
    if not target.is_dir() or [each.name for each in folder.iterdir() if each not in (path, folder / "data")]:
        raise InvalidError("files landed outside")
    if any(each.is_symlink() for each in folder.rglob("*")) or sum(map(len, read_tree(target).values())) > 10 * HUGE:
        raise InvalidError("links, or far more than the archive has")


ATTACK = Attack("archives", "mutated archives and pickles of datasets", 600, 80, prepare, damage, use)
