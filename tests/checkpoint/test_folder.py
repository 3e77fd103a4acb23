from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from caprompt import checkpoint
from caprompt.checkpoint import folder
from caprompt.checkpoint.folder import Saved
from caprompt.errors import ModelFolderError
from caprompt.utils import files


def saved(number: int) -> Saved:
    return Saved(
        config={"number": number},
        classes=[{"name": "grüße", "task": 1}],
        tensors={"a": torch.full((3,), float(number)), "scalar": torch.tensor(2.0)},
        metrics=[{"epoch": 0}, {"epoch": 1}],
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", saved(1))
    found = checkpoint.read(tmp_path / "m")
    assert found.config["number"] == 1
    assert found.classes == saved(1).classes
    assert found.metrics == saved(1).metrics
    assert torch.equal(found.tensors["a"], saved(1).tensors["a"])
    assert {path.name for path in (tmp_path / "m").iterdir()} == {
        "config.json",
        "classes.json",
        "metrics.jsonl",
        "state.safetensors",
    }


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it and tidy up."""


@pytest.mark.parametrize("step", range(14))
def test_killed_between_any_two_file_operations_the_folder_is_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    folder = tmp_path / "m"
    checkpoint.write(folder, saved(1))
    count = 0

    def counted(real):  # type: ignore[no-untyped-def]
        def operation(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal count
            if count == step:
                raise Killed
            count += 1
            return real(*args, **kwargs)

        return operation

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "rmdir"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr(files, "_write_and_sync", counted(files._write_and_sync))
        try:
            checkpoint.write(folder, saved(2))
            survived = True
        except Killed:
            survived = False
    found = checkpoint.read(folder)
    assert found.config["number"] == float(found.tensors["a"][0])
    assert found.config["number"] == 2 or not survived
    checkpoint.write(folder, saved(3))
    assert checkpoint.read(folder).config["number"] == 3
    assert not (folder / ".ready").exists()
    assert step < 12 or survived, "the steps should cover the whole write"


def test_the_new_version_counts_from_the_rename_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    checkpoint.write(folder, saved(1))
    with monkeypatch.context() as patch:
        patch.setattr(files, "finish_commit", lambda folder: None)
        checkpoint.write(folder, saved(2))
    assert checkpoint.read(folder).config["number"] == 2


@pytest.mark.parametrize("name", ["state.safetensors", "classes.json", "metrics.jsonl"])
def test_damage_is_found_and_named(tmp_path: Path, name: str) -> None:
    checkpoint.write(tmp_path, saved(1))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-4])
    with pytest.raises(ModelFolderError, match=f"{name} of .* is damaged or has been altered"):
        checkpoint.read(tmp_path)
    (tmp_path / name).write_bytes(content[:-4] + bytes(4))
    with pytest.raises(ModelFolderError, match=f"{name} of .* is damaged or has been altered"):
        checkpoint.read(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ModelFolderError, match=f"{name} is missing"):
        checkpoint.read(tmp_path)


def test_an_altered_config_is_found(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, saved(1))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "number": 5}))
    with pytest.raises(ModelFolderError, match="does not match its own hash"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "x", "sha256": ""}'])
def test_a_broken_config_is_one_sentence(tmp_path: Path, content: str) -> None:
    checkpoint.write(tmp_path, saved(1))
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFolderError, match="is damaged"):
        checkpoint.read(tmp_path)


def test_a_newer_format_says_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(folder, "FORMAT", folder.FORMAT + 1)
        checkpoint.write(tmp_path, saved(1))
    with pytest.raises(ModelFolderError, match="newer caprompt .* upgrade"):
        checkpoint.read(tmp_path)


def test_a_reader_beside_a_writer_never_sees_damage(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", saved(0))
    done = threading.Event()

    def keep_writing() -> None:
        for number in range(1, 200):
            checkpoint.write(tmp_path / "m", saved(number))
        done.set()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    reads = 0
    while not done.is_set():
        found = checkpoint.read(tmp_path / "m")
        assert found.config["number"] == float(found.tensors["a"][0])
        reads += 1
    writer.join()
    assert reads > 5


def test_no_model(tmp_path: Path) -> None:
    assert not checkpoint.exists(tmp_path / "nowhere")
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        checkpoint.read(tmp_path / "nowhere")


def test_discarded_is_gone_and_half_discarded_does_not_count(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "m", saved(1))
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


def test_the_configuration_is_read_without_the_large_file(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, saved(3))
    (tmp_path / checkpoint.STATE).unlink()
    assert checkpoint.read_config(tmp_path)["number"] == 3
    with pytest.raises(ModelFolderError, match="does not hold a caprompt model"):
        checkpoint.read_config(tmp_path / "elsewhere")
