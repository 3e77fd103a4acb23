from __future__ import annotations

import io

import torch
from rich.console import Console

from caprompt.callbacks.events import Consolidating, ImagesChecked, LearnEnded, LearnStarted, StepEnded
from caprompt.callbacks.progress_bar import ProgressBar


def replay_events(terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140)
    with ProgressBar(console) as progress_bar:
        for done in range(1, 4):
            progress_bar(ImagesChecked(done, 3))
        progress_bar(LearnStarted(2, ("cat", "dog"), (), images=8, epochs=2, first_epoch=1))
        for _ in range(2):
            progress_bar(StepEnded(1, 4, {"ce": torch.tensor(0.25), "concave": torch.tensor(0.5)}))
        progress_bar.bars.refresh()
        progress_bar(Consolidating())
        progress_bar.bars.refresh()
        progress_bar(LearnEnded(4, 1.0))
    return output.getvalue()


def test_shows_loss_terms_speed_and_position() -> None:
    text = replay_events(terminal=True)
    for part in ("task 2: cat, dog", "epoch 2", "ce 0.250", "concave 0.500", "images/s", "16/16", "class statistics"):
        assert part in text


def test_silent_without_a_terminal() -> None:
    assert replay_events(terminal=False).strip() == ""


def test_steps_before_a_start_are_ignored() -> None:
    with ProgressBar(Console(file=io.StringIO())) as progress_bar:
        progress_bar(StepEnded(0, 4, {"ce": torch.tensor(1.0)}))
        progress_bar(Consolidating())
