from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from caprompt import checkpoint
from caprompt.checkpoint import folder
from caprompt.checkpoint.folder import Saved
from caprompt.errors import ModelFolderError
from caprompt.utils import files


def make_saved(number: int) -> Saved:
    config = {
        "method": "ncm",
        "options": {},
        "backbone": {"name": "tiny", "path": "tiny.safetensors", "sha256": "0" * 64},
        "seed": 0,
        "task_sizes": [1],
        "calls": 1,
        "number": number,
    }
    return Saved(
        config=config,
        classes=[{"name": "grüße", "task": 1, "images": 5}],
        tensors={"method.a": torch.full((3,), float(number)), "method.scalar": torch.tensor(2.0)},
        metrics=[{"call": 0, "epoch": 0}, {"call": 0, "epoch": 1}],
    )


def test_read_returns_what_was_written(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", make_saved(1))
    content = checkpoint.read(tmp_path / "m")
    assert content.config["number"] == 1
    assert content.classes == make_saved(1).classes
    assert content.metrics == make_saved(1).metrics
    assert torch.equal(content.tensors["method.a"], make_saved(1).tensors["method.a"])
    assert {path.name for path in (tmp_path / "m").iterdir()} == {
        "config.json",
        "classes.json",
        "metrics.jsonl",
        "state.safetensors",
    }


def test_tensors_that_were_read_outlive_their_file_and_never_change_it(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", make_saved(1))
    first = checkpoint.read(tmp_path / "m").tensors["method.a"]
    first += 10
    assert checkpoint.read(tmp_path / "m").tensors["method.a"].tolist() == [1, 1, 1]
    second = checkpoint.read(tmp_path / "m").tensors["method.a"]
    checkpoint.write(tmp_path / "m", make_saved(2))
    checkpoint.discard(tmp_path / "m")
    assert (first.tolist(), second.tolist()) == ([11, 11, 11], [1, 1, 1])


def test_a_file_that_is_replaced_between_check_and_use_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.write(tmp_path / "m", make_saved(1))
    real, replaced = folder.safe_open, []

    def replace_before(*args, **kwargs):  # type: ignore[no-untyped-def]
        if not replaced:
            replaced.append(True)
            checkpoint.write(tmp_path / "m", make_saved(2))
        return real(*args, **kwargs)

    monkeypatch.setattr(folder, "safe_open", replace_before)
    content = checkpoint.read(tmp_path / "m")
    assert (content.config["number"], content.tensors["method.a"].tolist()) == (2, [2, 2, 2])


class Killed(BaseException):
    """Simulated SIGKILL: nothing may catch it and clean up."""


@pytest.mark.parametrize("step", range(27))
def test_kill_between_any_two_file_operations_leaves_the_old_or_new_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = tmp_path / "m"
    checkpoint.write(folder, make_saved(1))
    count = 0

    def count_calls(real):  # type: ignore[no-untyped-def]
        def operation(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal count
            if count == step:
                raise Killed
            count += 1
            return real(*args, **kwargs)

        return operation

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "rmdir"):
            patch.setattr(Path, name, count_calls(getattr(Path, name)))
        patch.setattr(files, "_write_and_sync", count_calls(files._write_and_sync))
        try:
            checkpoint.write(folder, make_saved(2))
            finished = True
        except Killed:
            finished = False
    content = checkpoint.read(folder)
    assert content.config["number"] == float(content.tensors["method.a"][0])
    assert content.config["number"] == 2 or not finished
    checkpoint.write(folder, make_saved(3))
    assert checkpoint.read(folder).config["number"] == 3
    assert not (folder / ".ready").exists()
    assert step < 25 or finished, "the steps should cover the whole write"


def test_new_version_takes_effect_with_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    checkpoint.write(folder, make_saved(1))
    with monkeypatch.context() as patch:
        patch.setattr(files, "finish_commit", lambda folder: None)
        checkpoint.write(folder, make_saved(2))
    assert checkpoint.read(folder).config["number"] == 2


def test_disk_that_fails_once_the_new_version_counts_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    checkpoint.write(folder, make_saved(1))

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)  # of a file into its place
        checkpoint.write(folder, make_saved(2), num_versions=1)
        assert checkpoint.read(folder).config["number"] == 2
        checkpoint_before = checkpoint.read_identity(folder)
    checkpoint.write(folder, make_saved(3), num_versions=1)
    assert checkpoint.read(folder).config["number"] == 3
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        checkpoint.revert(folder)
    assert checkpoint.read_identity(folder) == checkpoint_before


def test_name_that_no_folder_can_have_is_no_model() -> None:
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        checkpoint.read(Path("a\0b"))


@pytest.mark.parametrize("name", ["state.safetensors", "classes.json", "metrics.jsonl"])
def test_damaged_file_is_detected_and_named(tmp_path: Path, name: str) -> None:
    checkpoint.write(tmp_path, make_saved(1))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-4])
    with pytest.raises(ModelFolderError, match=f"{name} of .* is damaged or was modified"):
        checkpoint.read(tmp_path)
    (tmp_path / name).write_bytes(content[:-4] + bytes(4))
    with pytest.raises(ModelFolderError, match=f"{name} of .* is damaged or was modified"):
        checkpoint.read(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ModelFolderError, match=f"{name} is missing"):
        checkpoint.read(tmp_path)


def test_modified_config_is_detected(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, make_saved(1))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "number": 5}))
    with pytest.raises(ModelFolderError, match="was modified and does not match its hash"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "x", "sha256": ""}'])
def test_invalid_config_is_an_error(tmp_path: Path, content: str) -> None:
    checkpoint.write(tmp_path, make_saved(1))
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFolderError, match="is damaged"):
        checkpoint.read(tmp_path)


def test_newer_format_asks_to_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder, "FORMAT", folder.FORMAT + 1)
        checkpoint.write(tmp_path, make_saved(1))
    with pytest.raises(ModelFolderError, match="newer caprompt .* upgrade"):
        checkpoint.read(tmp_path)


def test_reader_beside_a_writer_never_sees_damage(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", make_saved(0))
    done = threading.Event()

    def keep_writing() -> None:
        for number in range(1, 200):
            checkpoint.write(tmp_path / "m", make_saved(number))
        done.set()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    num_reads = 0
    while not done.is_set():
        content = checkpoint.read(tmp_path / "m")
        assert content.config["number"] == float(content.tensors["method.a"][0])
        num_reads += 1
    writer.join()
    assert num_reads > 5


def test_files_are_all_of_one_version(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, make_saved(1))
    visits = 0

    def collect(files: Iterator[tuple[str, bytes]]) -> dict[str, bytes]:
        nonlocal visits
        visits += 1
        found = dict([next(files)])
        if visits == 1:  # a writer comes in between
            checkpoint.write(tmp_path, make_saved(2))
        return {**found, **dict(files)}

    found = checkpoint.visit_files(tmp_path, collect)
    assert visits == 2
    assert found == {name: (tmp_path / name).read_bytes() for name in checkpoint.list_files(tmp_path)}


def test_missing_model(tmp_path: Path) -> None:
    assert not checkpoint.exists(tmp_path / "nowhere")
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        checkpoint.read(tmp_path / "nowhere")


def test_discard_also_removes_a_partly_removed_folder(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", make_saved(1))
    (tmp_path / "m" / "config.json").unlink()
    assert not checkpoint.exists(tmp_path / "m")
    checkpoint.discard(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    checkpoint.discard(tmp_path / "m")


def test_write_json_replaces_whole(tmp_path: Path) -> None:
    files.write_json(tmp_path / "deep" / "a.json", {"x": 1})
    files.write_json(tmp_path / "deep" / "a.json", {"x": 2})
    assert json.loads((tmp_path / "deep" / "a.json").read_text()) == {"x": 2}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_read_config_does_not_need_the_tensors(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, make_saved(3))
    (tmp_path / checkpoint.STATE).unlink()
    assert checkpoint.read_config(tmp_path)["number"] == 3
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        checkpoint.read_config(tmp_path / "elsewhere")
