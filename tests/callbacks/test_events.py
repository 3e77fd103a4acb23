from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from caprompt.callbacks.events import Event, LearnEnded, compose, ignore_event


def test_events_are_facts_that_cannot_be_changed() -> None:
    event = LearnEnded(3, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.classes = 4  # type: ignore[misc]


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ignore_event(LearnEnded(3, 1.0))
    assert capsys.readouterr() == ("", "")


def test_several_are_told_in_their_order() -> None:
    heard: list[tuple[str, Event]] = []
    event = LearnEnded(3, 1.0)
    compose(lambda told: heard.append(("one", told)), lambda told: heard.append(("other", told)))(event)
    assert heard == [("one", event), ("other", event)]


def test_listening_costs_no_torch() -> None:
    script = "import sys, caprompt.callbacks.events; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
