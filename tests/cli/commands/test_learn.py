from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import QUICK, assert_refused, caprompt_in_process, square, squares, write_backbone, write_squares
from PIL import Image

from caprompt import ContinualClassifier, InputError, checkpoint
from caprompt.callbacks.events import Event, StepEnded
from caprompt.cli.commands.learn import describe_interrupt, is_reusable_folder, open_model
from caprompt.errors import OptionError


def open_quick(
    folder: Path, backbone: Path, resume: bool = False, restart: bool = False, **settings: object
) -> ContinualClassifier:
    """Open a model; a new one gets the backbone and options that make training quick."""
    defaults = {} if checkpoint.exists(folder) or resume else {"backbone": backbone, **QUICK}
    return open_model(folder, {**defaults, **settings}, resume=resume, restart=restart, device="cpu")


def stop_in_epoch(epoch: int) -> Callable[[Event], None]:
    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == epoch:
            raise KeyboardInterrupt

    return stop


def learn_and_stop(model: ContinualClassifier, folder: Path, epoch: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        model.learn(squares(["red", "blue"]), checkpoint_dir=folder, callbacks=stop_in_epoch(epoch))


def test_creates_a_model_then_opens_it_without_settings(tmp_path: Path, backbone: Path) -> None:
    open_quick(tmp_path / "m", backbone).learn(squares(["red"]), checkpoint_dir=tmp_path / "m")
    assert open_quick(tmp_path / "m", backbone).classes == ["red"]
    with pytest.raises(OptionError, match="'epochs' can only be set for a new model"):
        open_quick(tmp_path / "m", backbone, epochs=3)


def test_stopped_call_must_be_resumed_or_discarded(tmp_path: Path, backbone: Path) -> None:
    learn_and_stop(open_quick(tmp_path / "m", backbone, modulation=1), tmp_path / "m", epoch=1)
    assert "--resume continues" in describe_interrupt(tmp_path / "m", 0)
    with pytest.raises(InputError, match="with --resume, or discard it with --restart"):
        open_quick(tmp_path / "m", backbone)
    assert open_quick(tmp_path / "m", backbone, resume=True).method.options.modulation == 1  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="leave out modulation"):
        open_quick(tmp_path / "m", backbone, resume=True, modulation=2)


def test_restart_discards_even_a_damaged_checkpoint(tmp_path: Path, backbone: Path) -> None:
    learn_and_stop(open_quick(tmp_path / "m", backbone), tmp_path / "m", epoch=1)
    (tmp_path / "m" / "in-progress" / "state.safetensors").write_bytes(b"")
    learn_and_stop(open_quick(tmp_path / "m", backbone, restart=True), tmp_path / "m", epoch=0)
    assert "nothing was changed" in describe_interrupt(tmp_path / "m", 0)
    with pytest.raises(InputError, match="there is nothing to resume"):
        open_quick(tmp_path / "m", backbone, resume=True)


def test_interrupt_after_the_model_was_saved(tmp_path: Path, backbone: Path) -> None:
    open_quick(tmp_path / "m", backbone).learn(squares(["red"]), checkpoint_dir=tmp_path / "m")
    assert "trained and saved" in describe_interrupt(tmp_path / "m", 0)


def test_never_writes_into_a_folder_that_is_not_a_model(tmp_path: Path, backbone: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert is_reusable_folder(tmp_path / "mine")
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_model(tmp_path / "mine", {"backbone": str(backbone)}, resume=False, restart=False, device="cpu")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_model(tmp_path / "mine" / "letter.txt", {}, resume=False, restart=False, device="cpu")


def test_unequal_tasks_and_more_images_of_a_known_class(tmp_path: Path, quick: tuple[str, ...]) -> None:
    """Learn tasks of 1, 4, 2 and 3 classes, then further images of a known one."""
    write_backbone(tmp_path / "tiny.safetensors")
    weeks = [["red"], ["green", "blue", "yellow", "purple"], ["cyan", "white"], ["black", "orange", "gray"]]
    for number, colors in enumerate(weeks, start=1):
        write_squares(tmp_path / f"week{number}", colors)
        flags = ["--backbone", "tiny.safetensors", *quick] if number == 1 else []
        done = caprompt_in_process("learn", "pets", f"week{number}", *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    write_squares(tmp_path / "later", ["green"], start=30)
    done = caprompt_in_process("learn", "pets", "later", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "more of: green" in done.stdout
    assert "10 classes" in done.stdout
    classes = json.loads((tmp_path / "pets" / "classes.json").read_text())
    assert [sum(entry["task"] == task for entry in classes) for task in (1, 2, 3, 4)] == [1, 4, 2, 3]
    assert next(entry["images"] for entry in classes if entry["name"] == "green") == 10
    write_squares(tmp_path / "test", [color for week in weeks for color in week], each=2, start=60)
    evaluation = json.loads(caprompt_in_process("evaluate", "pets", "test", "--json", cwd=tmp_path).stdout)
    assert evaluation["images"] == 20
    assert [task["images"] for task in evaluation["tasks"]] == [2, 8, 4, 6]


def test_learn_says_on_stderr_what_it_chose_and_why(tmp_path: Path) -> None:
    write_backbone(tmp_path / "tiny.safetensors")
    write_squares(tmp_path / "week1", ["red", "green"], each=10)
    done = caprompt_in_process(
        "learn", "pets", "week1", "--backbone", "tiny.safetensors", "--set", "length=4", "--set", "projections=40", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "Training: 20 images, so 20 epochs in batches of 16 (40 steps) at learning rate 0.12\n"
    assert "Training" not in done.stdout


def test_learn_says_nothing_about_settings_that_were_given(tmp_path: Path, quick: tuple[str, ...]) -> None:
    write_backbone(tmp_path / "tiny.safetensors")
    write_squares(tmp_path / "week1", ["red", "green"])
    flags = ["--backbone", "tiny.safetensors", *quick, "--set", "learning_rate=0.01"]
    done = caprompt_in_process("learn", "pets", "week1", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    write_squares(tmp_path / "later", ["green"], start=30)
    assert caprompt_in_process("learn", "pets", "later", cwd=tmp_path).stderr == ""


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_resume_gives_the_same_model(workspace: Path) -> None:
    write_squares(workspace / "many", ["blue", "cyan"], each=40)
    words = ["learn", "stopped", "many", "--backbone", "tiny.safetensors", "--set", "epochs=60", "--set", "length=4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "caprompt", *words], cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (workspace / "stopped" / "in-progress" / "config.json").exists():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    training, stopped = stderr.strip().splitlines()
    assert training.startswith("Training: 80 images, so 60 epochs")
    assert stopped == "caprompt: Stopped; --resume continues after the last complete epoch."
    assert_refused(workspace, ["predict", "stopped", "test"], "continue it with --resume", caprompt_in_process)
    assert_refused(workspace, ["learn", "stopped", "many"], "with --resume, or discard it with --restart", caprompt_in_process)
    done = caprompt_in_process("learn", "stopped", "many", "--resume", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert caprompt_in_process(*words[:1], "straight", *words[2:], cwd=workspace).returncode == 0
    states = [(workspace / name / "state.safetensors").read_bytes() for name in ("stopped", "straight")]
    assert states[0] == states[1]
    assert_refused(workspace, ["learn", "stopped", "many", "--resume"], "there is nothing to resume", caprompt_in_process)


def test_empty_class(workspace: Path, blue_cyan: Path) -> None:
    (blue_cyan / "void").mkdir()
    assert_refused(workspace, ["learn", "pets", "bad"], "bad/void' has no images", caprompt_in_process)


def test_corrupt_image_is_an_error_or_skipped_and_listed(workspace: Path, blue_cyan: Path) -> None:
    (blue_cyan / "blue" / "broken.png").write_bytes((blue_cyan / "blue" / "000.png").read_bytes()[:60])
    assert_refused(workspace, ["learn", "pets", "bad"], "with --skip-bad", caprompt_in_process)
    assert_refused(workspace, ["learn", "pets", "bad"], "bad/blue/broken.png", caprompt_in_process)
    shutil.copytree(workspace / "pets", workspace / "copy", dirs_exist_ok=True)
    done = caprompt_in_process("learn", "copy", "bad", "--skip-bad", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "bad/blue/broken.png" in "".join(done.stderr.split())
    assert "Learned 10 images" in done.stdout
    assert_refused(workspace, ["predict", "pets", "bad"], "bad/blue/broken.png", caprompt_in_process)
    assert len(json.loads(caprompt_in_process("predict", "pets", "bad", "--skip-bad", "--json", cwd=workspace).stdout)) == 10


def test_same_image_in_two_classes(workspace: Path, blue_cyan: Path) -> None:
    shutil.copy(blue_cyan / "blue" / "000.png", blue_cyan / "cyan" / "same.png")
    assert_refused(workspace, ["learn", "pets", "bad"], "are the same image", caprompt_in_process)


def test_class_name_that_is_not_a_file_name(workspace: Path, blue_cyan: Path) -> None:
    (workspace / "list.csv").write_text("path,label\nbad/blue/000.png,a/b\n")
    assert_refused(workspace, ["learn", "pets", "list.csv"], "a/b", caprompt_in_process)


def make_huge_png_header() -> bytes:
    """Return a PNG file of a few bytes that claims to have 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = b"IHDR" + header
    end = b"\x00\x00\x00\x00IEND\xaeB`\x82"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + body + struct.pack(">I", zlib.crc32(body)) + end


def test_decompression_bomb(workspace: Path, blue_cyan: Path) -> None:
    (blue_cyan / "blue" / "bomb.png").write_bytes(make_huge_png_header())
    assert_refused(workspace, ["learn", "pets", "bad"], "bad/blue/bomb.png", caprompt_in_process)
    assert_refused(workspace, ["predict", "pets", "bad/blue/bomb.png"], "bad/blue/bomb.png", caprompt_in_process)


def test_unusual_images_are_accepted(workspace: Path, quick: tuple[str, ...]) -> None:
    """Gray, palette, alpha, 16-bit and rotated images, nested and in mixed formats."""
    folder = workspace / "odd" / "mix"
    (folder / "deep" / "er").mkdir(parents=True)
    image = Image.fromarray(square("orange", 1))
    image.convert("L").save(folder / "gray.jpg")
    image.convert("P").save(folder / "palette.gif")
    image.convert("RGBA").save(folder / "deep" / "alpha.webp")
    image.convert("L").convert("I;16").save(folder / "deep" / "er" / "sixteen.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(folder / "turned.JPG", exif=exif)
    done = caprompt_in_process("learn", "odds", "odd", "--backbone", "tiny.safetensors", *quick, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "Learned 5 images" in done.stdout
