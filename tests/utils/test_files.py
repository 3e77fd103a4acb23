"""Atomic writes: files are written under another name, synced, and then renamed into place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caprompt.errors import InputError
from caprompt.utils.files import (
    commit,
    compute_sha256,
    encode_json,
    finish_commit,
    get_current_path,
    read_json,
    read_toml,
    write_bytes,
    write_json,
)

OLD, NEW = b"old", b"new content"
Operations = list[tuple[str, str]]


class KilledError(BaseException):
    """Stands for SIGKILL: no handler may catch it and clean up."""


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Operations:
    """The synced and renamed paths, in order.

    A rename fails unless all that it renames was synced in full.
    """
    log: Operations = []
    synced: dict[int, int] = {}  # inode -> size when it was synced

    def relative(path: object) -> str:
        return Path(str(path)).relative_to(tmp_path).as_posix()

    def sync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        status = os.fstat(descriptor)
        paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_ino == status.st_ino]
        synced[status.st_ino] = status.st_size
        log.extend(("sync", relative(path)) for path in paths)
        real(descriptor)

    def check_renames(name: str) -> None:
        real = getattr(Path, name)

        def rename(self: Path, target: Path) -> Any:
            for path in [self] if self.is_file() else [path for path in self.rglob("*") if path.is_file()]:
                assert synced.get(path.stat().st_ino) == path.stat().st_size, f"'{path}' was renamed before it was synced"
            log.append(("rename", relative(target)))
            return real(self, target)

        monkeypatch.setattr(Path, name, rename)

    monkeypatch.setattr(os, "fsync", sync)
    check_renames("rename")
    check_renames("replace")
    return log


def test_write_bytes_syncs_a_temporary_file_before_the_rename(tmp_path: Path, operations: Operations) -> None:
    write_bytes(tmp_path / "a.bin", NEW)
    (sync, temporary), rename = operations
    assert sync == "sync"
    assert temporary != "a.bin"
    assert rename == ("rename", "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_commit_syncs_every_file_before_any_rename(tmp_path: Path, operations: Operations) -> None:
    commit(tmp_path / "m", {"a": NEW, "b": b"", "c": NEW * 1000})
    kinds = [kind for kind, _ in operations]
    assert kinds[:4] == ["sync"] * 4  # and the list of removals
    assert set(kinds[4:]) == {"rename"}
    assert [path for kind, path in operations if kind == "rename"] == ["m/.ready", "m/a", "m/b", "m/c"]
    assert not {path for kind, path in operations if kind == "sync"} & {"m/a", "m/b", "m/c"}
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("write", [write_bytes, lambda path, content: commit(path.parent, {"other": content, path.name: content})])
def test_old_content_stays_until_new_content_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "a", OLD)
    contents: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: contents.append((tmp_path / "a").read_bytes()))
    write(tmp_path / "a", NEW)
    assert contents
    assert set(contents) == {OLD}
    assert (tmp_path / "a").read_bytes() == NEW


@pytest.mark.parametrize("write", [write_bytes, lambda path, content: commit(path.parent, {path.name: content})])
def test_killed_while_syncing_the_old_file_is_whole_and_a_later_write_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "a", OLD)

    def kill(descriptor: int) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", kill)
        with pytest.raises(KilledError):
            write(tmp_path / "a", NEW)
    assert get_current_path(tmp_path, "a").read_bytes() == OLD
    write(tmp_path / "a", NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == NEW


def test_interrupted_commit_is_read_from_ready_and_finished_later(tmp_path: Path) -> None:
    commit(tmp_path, {"a": OLD, "b": OLD})
    ready = tmp_path / ".ready"
    ready.mkdir()
    (ready / "b").write_bytes(NEW)
    assert get_current_path(tmp_path, "a") == tmp_path / "a"
    assert get_current_path(tmp_path, "b").read_bytes() == NEW
    finish_commit(tmp_path)
    assert not ready.exists()
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (OLD, NEW)
    finish_commit(tmp_path)


def test_commit_may_finish_later_once_its_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, {"a": OLD})

    def fail(self: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="Input/output"):
            commit(tmp_path, {"a": NEW})
    commit(tmp_path, {"a": OLD})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        commit(tmp_path, {"a": NEW}, may_finish_later=True)
    assert get_current_path(tmp_path, "a").read_bytes() == NEW
    finish_commit(tmp_path)
    assert (tmp_path / "a").read_bytes() == NEW


@pytest.mark.parametrize(
    "names", ['["../secret"]', '["a/../../secret"]', "[7]", '{"a": 1}', "[", "\udce9", '["."]', "[" * 100_000, '["\\u0000"]']
)
def test_unfinished_commit_of_another_may_not_delete_what_is_outside(tmp_path: Path, names: str) -> None:
    (tmp_path / "secret").write_bytes(OLD)
    (tmp_path / "m" / ".ready").mkdir(parents=True)
    (tmp_path / "m" / "kept").write_bytes(OLD)
    for text in (names, json.dumps([str(tmp_path / "secret")])):
        (tmp_path / "m" / ".ready" / ".remove").write_bytes(text.encode(errors="surrogateescape"))
        for call in (finish_commit, lambda folder: get_current_path(folder, "a")):
            with pytest.raises(InputError, match=r"\.remove' is damaged; restore the folder from a backup"):
                call(tmp_path / "m")
    assert (tmp_path / "secret").read_bytes() == (tmp_path / "m" / "kept").read_bytes() == OLD


def test_commit_finishes_an_interrupted_one_first(tmp_path: Path) -> None:
    ready = tmp_path / ".ready"
    ready.mkdir()
    (ready / "a").write_bytes(OLD)
    (tmp_path / ".next").mkdir()
    (tmp_path / ".next" / "half-written").write_bytes(b"")
    commit(tmp_path, {"b": NEW})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (OLD, NEW)


def test_write_json_replaces_the_file_and_creates_its_directory(tmp_path: Path, operations: Operations) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"x": 1})
    write_json(path, {"grüße": [2, None]})
    assert read_json(path) == {"grüße": [2, None]}
    assert [path.name for path in path.parent.iterdir()] == ["a.json"]
    assert operations.count(("rename", "deep/a.json")) == 2


def test_encode_json_is_indented_utf8() -> None:
    assert encode_json({"grüße": [1]}) == '{\n  "grüße": [\n    1\n  ]\n}\n'.encode()
    assert json.loads(encode_json(None)) is None


def test_read_json_of_missing_and_other_files(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing.json") == {}
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError, match=r"list.json' is not a JSON object"):
        read_json(tmp_path / "list.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"broken.json' is not JSON"):
        read_json(tmp_path / "broken.json")


def test_read_toml(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('epochs = 3\nname = "grüße"\n[table]\nx = [1, 2]\n', encoding="utf-8")
    assert read_toml(path) == {"epochs": 3, "name": "grüße", "table": {"x": [1, 2]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), (b"name = '\xff'", "cannot be read"), (b"epochs =", "is not valid TOML")],
    ids=["missing", "not UTF-8", "invalid"],
)
def test_read_toml_errors_name_the_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.toml' {message}"):
        read_toml(path)


def test_sha256_of_small_and_large_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert compute_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "a").write_bytes(b"a" * 3_000_000)  # more than one block
    assert compute_sha256(tmp_path / "a") == "2a152c894398719c0570f83fac34ac03a0f6e8e474b995c2403aa5434f7b9dd4"


def test_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert path.read_bytes() == b"old"
