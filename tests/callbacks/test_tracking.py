from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import write_squares

from caprompt.callbacks.tracking import make_tracker
from caprompt.errors import InputError, OptionError

# A run that fails after its first task, and is resumed. Every connection to another machine is printed, and refused.
SCRIPT = """
import ipaddress, socket, sys
from pathlib import Path
from caprompt.callbacks.events import EpochEnded, LearnStarted, TaskEvaluated
from caprompt.callbacks.tracking import make_tracker

def refuse(name, arguments):
    if name in ("socket.connect", "socket.getaddrinfo"):
        host = arguments[1][0] if name == "socket.connect" and isinstance(arguments[1], tuple) else arguments[0]
        if isinstance(host, str) and host not in ("localhost", "127.0.0.1", "::1"):
            print("CONNECTS", host)
            raise OSError("no network")

sys.addaudithook(refuse)
library, folder = sys.argv[1], Path(sys.argv[2])
folder.mkdir()
matrix = [[90.0], [80.0, 100.0]]
try:
    with make_tracker(library, folder, lambda: {"method": "linear", "crop_scale": [0.3, 1.0]}) as tracker:
        tracker(LearnStarted(1, ("cat",), (), images=8, epochs=1, first_epoch=0))
        tracker(EpochEnded(0, 1, {"ce": 0.5}, 8, 2.0))
        tracker(TaskEvaluated(matrix[:1]))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
with make_tracker(library, folder, lambda: {"method": "linear", "crop_scale": [0.3, 1.0]}) as tracker:
    tracker(LearnStarted(2, ("dog",), (), images=8, epochs=1, first_epoch=0))
    tracker(EpochEnded(0, 1, {"ce": 0.25}, 8, 2.0))
    tracker(TaskEvaluated(matrix))
    tracker.log_summary({"ACC": 90.0})
print("done")
"""


def track(library: str, cwd: Path) -> Path:
    """Track a run with a real library in a new process, and return the run's folder."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install {library}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "TRACKIO", "MLFLOW"))}
    environment |= {"TRACKIO_DIR": str(cwd / "trackio")}
    words = [sys.executable, "-c", SCRIPT, library, str(cwd / "run")]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"  # no connection, and nothing of the library's own
    return cwd / "run"


@pytest.mark.slow
def test_trackio_keeps_one_local_run_across_a_resume(tmp_path: Path) -> None:
    folder = track("trackio", tmp_path)
    key = json.loads((folder / "tracking.json").read_text())["trackio"]
    with sqlite3.connect(tmp_path / "trackio" / "caprompt.db") as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY step").fetchall()
        ((config,),) = database.execute("SELECT config FROM configs").fetchall()
    assert {name for name, _ in rows} == {f"run-{key}"}
    logged = [{name: value for name, value in json.loads(values).items() if "images per" not in name} for _, values in rows]
    assert logged == [
        {"task 1/loss ce": 0.5, "task": 1},
        {"test/ACC": 90.0, "test/AF": 0.0, "test/accuracy on task 1": 90.0, "task": 1},
        {"task 2/loss ce": 0.25, "task": 2},
        {"test/ACC": 90.0, "test/AF": 10.0, "test/accuracy on task 1": 80.0, "test/accuracy on task 2": 100.0, "task": 2},
        {"final/ACC": 90.0, "task": 2},
    ]
    assert json.loads(config).items() >= {"method": "linear", "crop_scale": [0.3, 1.0]}.items()


@pytest.mark.slow
def test_wandb_is_offline_and_writes_into_the_run_folder(tmp_path: Path) -> None:
    folder = track("wandb", tmp_path)
    key = json.loads((folder / "tracking.json").read_text())["wandb"]
    first, second = sorted((folder / "wandb").glob(f"offline-run-*-{key}/run-{key}.wandb"))
    assert b"task 1/loss ce" in first.read_bytes()
    assert b"crop_scale" in first.read_bytes()
    for name in (b"task 2/loss ce", b"test/accuracy on task 2", b"final/ACC"):
        assert name in second.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_mlflow_keeps_one_local_run_across_a_resume(tmp_path: Path) -> None:
    folder = track("mlflow", tmp_path)
    key = json.loads((folder / "tracking.json").read_text())["mlflow"]
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        ((run, name, status),) = database.execute("SELECT run_uuid, name, status FROM runs").fetchall()
        values = database.execute("SELECT key, step, value FROM metrics ORDER BY key, step").fetchall()
        params = dict(database.execute("SELECT key, value FROM params").fetchall())
    assert (run, name, status) == (key, "run", "FINISHED")
    assert ("test/accuracy on task 1", 1, 90.0) in values
    assert ("test/accuracy on task 1", 2, 80.0) in values
    assert ("task 2/loss ce", 1, 0.25) in values
    assert params == {"method": '"linear"', "crop_scale": "[0.3, 1.0]"}


@pytest.mark.parametrize(
    ("library", "command"), [("wandb", "'caprompt[track]'"), ("trackio", "'caprompt[track]'"), ("mlflow", "mlflow")]
)
def test_missing_library_names_the_command_that_installs_it(
    library: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(OptionError) as raised:
        make_tracker(library, tmp_path)
    assert str(raised.value) == f"tracking with {library} needs the package {library}: pip install {command}"


def test_folder_that_a_library_has_written_is_not_taken_for_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed, and an installed package takes precedence over a folder")
    (tmp_path / "wandb" / "offline-run").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(OptionError, match="needs the package wandb"):
            make_tracker("wandb", tmp_path)
    finally:
        sys.modules.pop("wandb", None)


def test_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown tracker 'wandbb' .did you mean 'wandb'"):
        make_tracker("wandbb", tmp_path)


@pytest.mark.slow
def test_library_that_cannot_start_is_one_sentence_and_the_run_can_be_resumed(tmp_path: Path, backbone: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed: pip install trackio")
    write_squares(tmp_path / "data", ["red", "blue"])
    words = [sys.executable, "-m", "caprompt", "run", "--dataset", "data", "--backbone", str(backbone), "--tasks", "2"]
    words += ["--method", "linear", "--set", "epochs=1", "--out", "run", "--track", "trackio"]
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_SERVER_URL": "nowhere"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("caprompt: trackio could not start (")
    assert line.endswith("then go on with --resume")
    del environment["TRACKIO_SERVER_URL"]
    words.append("--resume")
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "trackio" / "caprompt.db") as database:
        names = {name for (values,) in database.execute("SELECT metrics FROM metrics") for name in json.loads(values)}
        ((config,),) = database.execute("SELECT config FROM configs").fetchall()
    assert {"task 2/loss ce", "test/accuracy on task 2", "final/ACC"} <= names
    assert json.loads(config)["epochs"] == 1
