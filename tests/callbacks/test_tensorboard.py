from __future__ import annotations

import sys
from pathlib import Path

import pytest

from caprompt.callbacks.events import EpochEnded, LearnStarted, TaskEvaluated
from caprompt.callbacks.tensorboard import TensorBoardWriter
from caprompt.errors import OptionError


def test_losses_and_metrics_are_written_as_scalars(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = TensorBoardWriter(tmp_path / "board")
    writer(LearnStarted(2, ("cat",), (), images=8, epochs=2, first_epoch=0))
    assert not (tmp_path / "board").exists()
    writer(EpochEnded(0, 2, {"ce": 0.5}, 8, 2.0))
    writer(EpochEnded(1, 2, {"ce": 0.25}, 8, 2.0))
    writer(TaskEvaluated([[90.0], [80.0, 100.0]]))
    events = accumulators.EventAccumulator(str(tmp_path / "board")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("task 2/loss ce")] == [(1, 0.5), (2, 0.25)]
    assert [each.value for each in events.Scalars("task 2/images per second")] == [4.0, 4.0]
    assert [(each.step, each.value) for each in events.Scalars("test/ACC")] == [(2, 90.0)]
    assert events.Scalars("test/AF")[0].value == 10.0
    assert events.Scalars("test/accuracy on task 1")[0].value == 80.0


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(OptionError, match=r"pip install 'caprompt\[track\]'"):
        TensorBoardWriter(tmp_path)
