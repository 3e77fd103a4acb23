from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import QUICK, write_squares

from caprompt.callbacks.events import EpochEnded, Event, LearnStarted, TaskEvaluated
from caprompt.callbacks.metrics_log import LOG, MetricsLog
from caprompt.experiments.config import RunConfig
from caprompt.experiments.execution import run_experiment
from caprompt.experiments.run_folder import read_finished_epochs

COLORS = ("red", "green", "blue", "yellow")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_without_seconds(path: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_lines(path)]


@pytest.fixture
def config(tmp_path: Path, backbone: Path) -> RunConfig:
    write_squares(tmp_path / "data", COLORS)
    return RunConfig(dataset=str(tmp_path / "data"), backbone=str(backbone), tasks=2, options=QUICK)


def test_writes_a_line_per_epoch_and_evaluation(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / LOG, [], [])
    assert read_lines(tmp_path / LOG) == []
    log(LearnStarted(1, ("cat",), (), images=8, epochs=2, first_epoch=0))
    log(EpochEnded(0, 2, {"ce": 0.5}, 8, 1.0))
    assert read_lines(tmp_path / LOG) == [{"task": 1, "epoch": 0, "losses": {"ce": 0.5}, "images": 8, "seconds": 1.0}]
    log(TaskEvaluated([[90.0]]))
    assert read_lines(tmp_path / LOG)[-1] == {"task": 1, "ACC": 90.0, "AF": 0.0, "accuracies": [90.0]}


def test_grows_during_a_run(config: RunConfig, tmp_path: Path) -> None:
    num_lines: list[int] = []

    def count(event: Event) -> None:
        if isinstance(event, (EpochEnded, TaskEvaluated)):
            num_lines.append(len(read_lines(tmp_path / "run" / LOG)))

    run_experiment(config, tmp_path / "run", callbacks=count)
    assert num_lines == [1, 2, 3, 4, 5, 6]
    assert [line.get("epoch", "test") for line in read_lines(tmp_path / "run" / LOG)] == [0, 1, "test"] * 2


def test_resumed_run_has_every_line_once(config: RunConfig, tmp_path: Path) -> None:
    run_experiment(config, tmp_path / "straight")
    for stop_at in range(1, 6):
        num_events = 0

        def stop(event: Event, stop_at: int = stop_at) -> None:
            nonlocal num_events
            num_events += isinstance(event, (EpochEnded, TaskEvaluated))
            if num_events == stop_at:
                raise KeyboardInterrupt

        folder = tmp_path / f"stopped{stop_at}"
        with pytest.raises(KeyboardInterrupt):
            run_experiment(config, folder, callbacks=stop)
        assert len(read_lines(folder / LOG)) == stop_at
        text = (folder / LOG).read_text()
        (folder / LOG).write_text(text[: text[:-1].rfind("\n") + 5])  # a power failure may lose the end of the file
        run_experiment(config, folder, resume=True)
        assert read_without_seconds(folder / LOG) == read_without_seconds(tmp_path / "straight" / LOG)


def test_folder_without_a_model_has_no_finished_epochs(tmp_path: Path) -> None:
    assert read_finished_epochs(tmp_path / "model") == []


KILLED = """
import os, signal, sys
from pathlib import Path
from caprompt.callbacks.events import EpochEnded
from caprompt.experiments.execution import RunConfig, run_experiment
epochs = 0
def listen(event):
    global epochs
    epochs += isinstance(event, EpochEnded)
    if epochs == 3:
        os.kill(os.getpid(), signal.SIGKILL)
run_experiment(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), callbacks=listen)
"""


@pytest.mark.slow
def test_kill_loses_no_line(config: RunConfig, tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, config.model_dump_json(), str(tmp_path / "run")]
    assert subprocess.run(words, check=False, timeout=120).returncode == -9
    assert [line.get("epoch", "test") for line in read_lines(tmp_path / "run" / LOG)] == [0, 1, "test", 0]
