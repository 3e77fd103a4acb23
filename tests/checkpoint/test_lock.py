from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from caprompt.checkpoint import lock_folder
from caprompt.checkpoint.lock import LOCK
from caprompt.errors import InputError, ModelFolderError

HOLD = """
import sys, time
from pathlib import Path
from caprompt.checkpoint import lock_folder
with lock_folder(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "a").write_text("x")
    print("held", flush=True)
    time.sleep(60)
"""


def hold_elsewhere(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_writer_is_refused_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    process = hold_elsewhere(tmp_path / "m")
    try:
        with (
            pytest.raises(ModelFolderError, match=f"being changed by another call .process {process.pid} on "),
            lock_folder(tmp_path / "m"),
        ):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / "m" / ".lock").exists()  # left by the killed process
    with lock_folder(tmp_path / "m"):
        assert str(os.getpid()) in (tmp_path / "m" / ".lock").read_text()
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["a"]


def test_lock_is_not_shared_within_a_process(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(ModelFolderError, match="being changed"), lock_folder(tmp_path):
        pass


def test_folder_that_stays_empty_is_removed_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_folder(tmp_path / "a" / "b"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".next-1-ab").mkdir()
    (tmp_path / ".next-1-ab" / "state").write_text("half")
    with lock_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("")
    with pytest.raises(ModelFolderError, match="is a file; choose another folder"), lock_folder(tmp_path / "m" / "n"):
        pass


def test_link_is_never_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="symbolic link"), lock_folder(tmp_path / "m"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_disk_that_fails_at_the_end_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch, lock_folder(tmp_path / "m"):
        patch.setattr(Path, "unlink", fail)
    with lock_folder(tmp_path / "m"):  # the file is there, but nobody holds it
        assert (tmp_path / "m" / LOCK).is_file()
