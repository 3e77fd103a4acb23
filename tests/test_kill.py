"""SIGKILL at many points of a run: its folder stays readable, and the resumed run is bit-equal to an uninterrupted one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import QUICK, write_squares

from caprompt import ContinualClassifier, checkpoint

# The last event of each process before it is killed: kills fall into reading, training, the checkpoint of an epoch,
# alignment, saving the model, evaluation and writing the results.
UNTIL = ("ImagesChecked", "StepEnded", "EpochEnded", "StepEnded", "Consolidating", "LearnEnded") * 2
MAX_FILE_OPERATIONS = 12  # between that event and the kill; about as many as saving a model takes
COLORS = ("red", "green", "blue", "yellow", "cyan", "white", "black", "orange")

# Resumes the run from its folder and prints the name of every event. At the n-th file operation after the m-th event of a kind, the
# process kills itself: counted in operations, not in seconds, so that a fast machine is killed at the same point as a slow one.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment

data, backbone, out, until, events_left, operations_left = *sys.argv[1:5], *map(int, sys.argv[5:])
FILE_OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree"}

def count_event(event):
    global events_left
    print(type(event).__name__, flush=True)
    events_left -= type(event).__name__ == until

def count_operation(name, _):
    global operations_left
    if events_left <= 0 and name in FILE_OPERATIONS:
        operations_left -= 1
        if operations_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count_operation)
config = RunConfig(dataset=data, backbone=backbone, tasks=(1, 2, 1, 1, 2, 1), options={options})
run_experiment(config, Path(out), resume=True, callbacks=count_event)
""".replace("{options}", repr({**QUICK, "epochs": 8}))


@pytest.mark.slow
def test_killed_and_resumed_run_is_bit_equal(tmp_path: Path, backbone: Path) -> None:
    data = tmp_path / "data"
    write_squares(data / "train", COLORS)
    write_squares(data / "test", COLORS, each=2, start=50)

    def run(out: Path, until: str = "never", times: int = 1, operations: int = 1) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", SCRIPT, str(data), str(backbone), str(out), until, str(times), str(operations)]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole).stdout.count("EpochEnded") == 48
    rng = random.Random(0)
    for event in UNTIL:
        times = rng.randint(1, 5) if event == "StepEnded" else 1
        process = run(killed, event, times, rng.randint(1, MAX_FILE_OPERATIONS))
        assert process.returncode == -signal.SIGKILL
        assert_readable(killed / "model")
    epochs_left = run(killed).stdout.count("EpochEnded")
    assert 0 < epochs_left < 48, "the kills should have left epochs to train"
    assert (killed / "model" / "state.safetensors").read_bytes() == (whole / "model" / "state.safetensors").read_bytes()
    summaries = [(folder / "results.json").read_text().split('"summary"')[1] for folder in (whole, killed)]
    assert summaries[0] == summaries[1]


def assert_readable(folder: Path) -> None:
    """Check that a model and a checkpoint, where a folder has them, can be read."""
    if checkpoint.exists(folder):
        ContinualClassifier.load(folder)
    if checkpoint.exists(folder / "in-progress"):
        checkpoint.read(folder / "in-progress")
