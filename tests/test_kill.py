"""SIGKILL at many points of a run: its folder stays readable, and the resumed run is bit-equal to an uninterrupted one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import QUICK, write_squares

from caprompt import ContinualClassifier, checkpoint

# The last event of each process before it is killed: kills fall into reading, training, the checkpoint of an epoch,
# alignment, saving the model, evaluation and writing the results.
UNTIL = ("ImagesChecked", "StepEnded", "EpochEnded", "StepEnded", "Consolidating", "LearnEnded") * 2
COLORS = ("red", "green", "blue", "yellow", "cyan", "white", "black", "orange")

# Resumes the run from its folder and prints the name of every event.
SCRIPT = """
import sys
from pathlib import Path
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
data, backbone, out = sys.argv[1:]
config = RunConfig(dataset=data, backbone=backbone, tasks=(1, 2, 1, 1, 2, 1), options={options})
run_experiment(config, Path(out), resume=True, callbacks=lambda event: print(type(event).__name__, flush=True))
""".replace("{options}", repr({**QUICK, "epochs": 8}))


@pytest.mark.slow
def test_killed_and_resumed_run_is_bit_equal(tmp_path: Path, backbone: Path) -> None:
    data = tmp_path / "data"
    write_squares(data / "train", COLORS)
    write_squares(data / "test", COLORS, each=2, start=50)

    def start(out: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", SCRIPT, str(data), str(backbone), str(out)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).communicate()[0].count("EpochEnded") == 48
    rng = random.Random(0)
    for event in UNTIL:
        kill_after(start(killed), event, times=rng.randint(1, 5) if event == "StepEnded" else 1, delay=rng.uniform(0, 0.05))
        assert_readable(killed / "model")
    epochs_left = start(killed).communicate()[0].count("EpochEnded")
    assert 0 < epochs_left < 48, "the kills should have left epochs to train"
    assert (killed / "model" / "state.safetensors").read_bytes() == (whole / "model" / "state.safetensors").read_bytes()
    summaries = [(folder / "results.json").read_text().split('"summary"')[1] for folder in (whole, killed)]
    assert summaries[0] == summaries[1]


def kill_after(process: subprocess.Popen[str], event: str, times: int, delay: float) -> None:
    """Kill a process `delay` seconds after it printed an event `times` times."""
    assert process.stdout is not None
    while times and (line := process.stdout.readline()):
        times -= line.startswith(event)
    time.sleep(delay)
    assert process.poll() is None, "the process should be alive when it is killed"
    process.kill()
    process.communicate()


def assert_readable(folder: Path) -> None:
    """Check that a model and a checkpoint, where a folder has them, can be read."""
    if checkpoint.exists(folder):
        ContinualClassifier.load(folder)
    if checkpoint.exists(folder / "in-progress"):
        checkpoint.read(folder / "in-progress")
