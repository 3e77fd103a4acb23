from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from caprompt import callbacks
from caprompt.callbacks.events import EpochEnded, Event, LearnEnded, compose, ignore_event


def test_events_are_immutable() -> None:
    event = LearnEnded(3, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.classes = 4  # type: ignore[misc]


def test_ignore_event_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ignore_event(LearnEnded(3, 1.0))
    assert capsys.readouterr() == ("", "")


def test_compose_calls_callbacks_in_order() -> None:
    calls: list[tuple[str, Event]] = []
    event = LearnEnded(3, 1.0)
    compose(lambda each: calls.append(("one", each)), lambda each: calls.append(("other", each)))(event)
    assert calls == [("one", event), ("other", event)]


def test_as_record_rounds() -> None:
    record = EpochEnded(epoch=1, epochs=2, losses={"ce": 0.12345678}, images=8, seconds=1.23456).as_record()
    assert record == {"epoch": 1, "losses": {"ce": 0.123457}, "images": 8, "seconds": 1.235}


def test_package_imports_neither_torch_nor_rich() -> None:
    script = "import sys, caprompt.callbacks; sys.exit(bool({'torch', 'rich', 'tensorboard'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_package_exports_every_name() -> None:
    for name in callbacks.__all__:
        assert getattr(callbacks, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = callbacks.Nothing
