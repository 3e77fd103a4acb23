from __future__ import annotations

import io

import torch
from rich.console import Console

from caprompt.callbacks.events import Consolidating, ImagesChecked, LearnEnded, LearnStarted, StepEnded
from caprompt.callbacks.progress_bar import ProgressBar


def play(terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=140)
    with ProgressBar(console) as listen:
        for done in range(1, 4):
            listen(ImagesChecked(done, 3))
        listen(LearnStarted(2, ("cat", "dog"), (), images=8, epochs=2, first_epoch=1))
        for _ in range(2):
            listen(StepEnded(1, 4, {"ce": torch.tensor(0.25), "concave": torch.tensor(0.5)}))
        listen.bars.refresh()
        listen(Consolidating())
        listen.bars.refresh()
        listen(LearnEnded(4, 1.0))
    return output.getvalue()


def test_shows_loss_parts_speed_and_position() -> None:
    shown = play(terminal=True)
    for part in ("task 2: cat, dog", "epoch 2", "ce 0.250", "concave 0.500", "images/s", "16/16", "class statistics"):
        assert part in shown


def test_quiet_without_a_terminal() -> None:
    assert play(terminal=False).strip() == ""


def test_steps_without_a_beginning_do_no_harm() -> None:
    with ProgressBar(Console(file=io.StringIO())) as listen:
        listen(StepEnded(0, 4, {"ce": torch.tensor(1.0)}))
        listen(Consolidating())
