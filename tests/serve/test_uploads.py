from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from caprompt.errors import DataError, InputError
from caprompt.serve.uploads import EXPIRY, FileProblem, Upload, UploadStore


def accept(content: bytes) -> None:
    if content == b"bad":
        raise DataError("it is bad")


def never(digest: bytes, label: str) -> bool:
    return False


def add(upload: Upload, label: str, name: str, content: bytes) -> FileProblem | None:
    return upload.add(label, name, content, accept, never)


def test_names_never_become_paths(tmp_path: Path) -> None:
    upload = UploadStore(tmp_path / "uploads").create()
    for number, name in enumerate(("../../evil.png", "/etc/passwd", "a\0b.jpg", "x.exe", "ü" * 300 + ".png")):
        assert add(upload, f"class {number}", name, f"content {number}".encode()) is None
    files = sorted(path.name for path in upload.folder.iterdir())
    assert files == ["000001.png", "000002", "000003.jpg", "000004", "000005.png", "images.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["uploads"]


def test_an_upload_is_read_again_after_a_kill(tmp_path: Path) -> None:
    store = UploadStore(tmp_path)
    upload = store.create()
    add(upload, "a", "1.png", b"1")
    add(upload, "b", "2.png", b"2")
    with (upload.folder / "images.jsonl").open("a") as index:
        index.write('{"file": "0000')  # the line that was being written
    (upload.folder / "000002.png").unlink()
    again = UploadStore(tmp_path).get(upload.identifier)
    assert again.count() == {"a": 1}
    problem = add(again, "c", "3.png", b"1")
    assert problem is not None
    assert "as 'a' ('1.png')" in problem.problem


def test_images_are_checked_before_they_are_kept(tmp_path: Path) -> None:
    upload = UploadStore(tmp_path).create()
    assert add(upload, "a", "bad.png", b"bad") == FileProblem("bad.png", "it is bad")
    learned = upload.add("a", "old.png", b"old", accept, lambda digest, label: label == "a")
    assert learned == FileProblem("old.png", "this image was learned before as 'a'")
    assert upload.add("b", "old.png", b"old", accept, lambda digest, label: label == "a") is None
    assert upload.problems == [FileProblem("bad.png", "it is bad"), learned]
    assert upload.count() == {"b": 1}


def test_warnings_are_about_few_images_and_single_classes(tmp_path: Path) -> None:
    upload = UploadStore(tmp_path).create()
    add(upload, "cat", "1.png", b"1")
    assert upload.list_warnings({}) == [
        "'cat' has only 1 image; 5 or more are better",
        "with a single class there is nothing to tell it from; add a second one",
    ]
    assert upload.list_warnings({"cat": 9, "dog": 9}) == []


def test_a_class_can_be_removed(tmp_path: Path) -> None:
    upload = UploadStore(tmp_path).create()
    for number in range(4):
        add(upload, "ab"[number % 2], f"{number}.png", str(number).encode())
    assert upload.remove_class("a") == 2
    assert add(upload, "b", "again.png", b"0") is None
    assert UploadStore(tmp_path).get(upload.identifier).count() == {"b": 3}
    assert len(list(upload.folder.glob("0*"))) == 3


def test_an_upload_that_a_job_uses_does_not_change(tmp_path: Path) -> None:
    upload = UploadStore(tmp_path).create()
    add(upload, "a", "1.png", b"1")
    upload.freeze()
    with pytest.raises(InputError, match="being taught"):
        add(upload, "a", "2.png", b"2")
    with pytest.raises(InputError, match="being taught"):
        upload.remove_class("a")
    assert UploadStore(tmp_path).get(upload.identifier).count() == {"a": 1}
    upload.frozen = False
    assert add(upload, "a", "2.png", b"2") is None


def test_uploads_are_limited_and_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.serve.uploads.MAX_UPLOADS", 2)
    monkeypatch.setattr("caprompt.serve.uploads.MAX_IMAGES", 1)
    store = UploadStore(tmp_path)
    old, used = store.create(), store.create()
    with pytest.raises(InputError, match="2 uploads already"):
        store.create()
    assert add(used, "a", "1.png", b"1") is None
    problem = add(used, "a", "2.png", b"2")
    assert problem is not None
    assert "at most 1 images" in problem.problem
    before = time.time() - EXPIRY - 10
    for upload in (old, used):
        os.utime(upload.folder, (before, before))
    store.remove_expired([used.identifier])
    assert list(store.uploads) == [used.identifier]
    assert not old.folder.exists()
