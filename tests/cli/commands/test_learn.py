from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, squares

from caprompt import ContinualClassifier, InputError, checkpoint
from caprompt.callbacks.events import Event, StepEnded
from caprompt.cli.commands.learn import interrupt_message, is_unfinished_folder, open_model
from caprompt.errors import OptionError


def opened(folder: Path, backbone: Path, resume: bool = False, restart: bool = False, **given: object) -> ContinualClassifier:
    begin = {} if checkpoint.exists(folder) or resume else {"backbone": backbone, **QUICK}
    return open_model(folder, {**begin, **given}, resume=resume, restart=restart, device="cpu")


def stop_in_epoch(number: int):  # type: ignore[no-untyped-def]
    def listen(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == number:
            raise KeyboardInterrupt

    return listen


def learn_and_stop(model: ContinualClassifier, folder: Path, epoch: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["red", "blue"]), folder=folder, listen=stop_in_epoch(epoch))


def test_new_then_old(tmp_path: Path, backbone: Path) -> None:
    opened(tmp_path / "m", backbone).learn(squares(["red"]), folder=tmp_path / "m")
    assert opened(tmp_path / "m", backbone).classes == ["red"]
    with pytest.raises(OptionError, match="'epochs' can only be set when a model is begun"):
        opened(tmp_path / "m", backbone, epochs=3)


def test_a_stopped_call_must_be_resumed_or_given_up(tmp_path: Path, backbone: Path) -> None:
    learn_and_stop(opened(tmp_path / "m", backbone, alpha=1), tmp_path / "m", epoch=1)
    assert "--resume goes on" in interrupt_message(tmp_path / "m", 0)
    with pytest.raises(InputError, match="--resume, or give it up with --restart"):
        opened(tmp_path / "m", backbone)
    assert opened(tmp_path / "m", backbone, resume=True).method.options.alpha == 1  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="leave out alpha"):
        opened(tmp_path / "m", backbone, resume=True, alpha=2)


def test_a_restart_gives_the_old_checkpoint_up_even_if_it_is_damaged(tmp_path: Path, backbone: Path) -> None:
    learn_and_stop(opened(tmp_path / "m", backbone), tmp_path / "m", epoch=1)
    (tmp_path / "m" / "in-progress" / "state.safetensors").write_bytes(b"")
    learn_and_stop(opened(tmp_path / "m", backbone, restart=True), tmp_path / "m", epoch=0)
    assert "nothing was changed" in interrupt_message(tmp_path / "m", 0)
    with pytest.raises(InputError, match="there is nothing to resume"):
        opened(tmp_path / "m", backbone, resume=True)


def test_what_an_interrupt_after_the_save_says(tmp_path: Path, backbone: Path) -> None:
    opened(tmp_path / "m", backbone).learn(squares(["red"]), folder=tmp_path / "m")
    assert "learned and saved" in interrupt_message(tmp_path / "m", calls_before=0)


def test_a_folder_that_is_no_model_is_never_written_into(tmp_path: Path, backbone: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert is_unfinished_folder(tmp_path / "mine")
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_model(tmp_path / "mine", {"backbone": str(backbone)}, resume=False, restart=False, device="cpu")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_model(tmp_path / "mine" / "letter.txt", {}, resume=False, restart=False, device="cpu")
