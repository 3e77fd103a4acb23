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
from backbones.published import DEIT
from export.local_hub import LocalHub
from helpers import QUICK, assert_refused, caprompt_in_process, square, squares, tiny_vit, write_backbone, write_squares
from huggingface_hub import constants
from PIL import Image

from caprompt import ContinualClassifier, InputError, checkpoint
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.callbacks.events import Event, StepEnded
from caprompt.cli.commands.learn import describe_interrupt, is_reusable_folder, open_model
from caprompt.errors import ModelFolderError, OptionError, UnknownOptionError
from caprompt.experiments.config import RunConfig


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
    with pytest.raises(OptionError, match="exists, with epochs=2; 'epochs' can only be set for a new model"):
        open_quick(tmp_path / "m", backbone, epochs=3)


def test_command_can_be_given_again_with_the_settings_of_its_model(tmp_path: Path, backbone: Path) -> None:
    folder, same = tmp_path / "m", {"backbone": backbone, **QUICK, "method": "caprompt", "seed": 1, "crop_scale": [0.5, 1]}

    def open_with(**changes: object) -> ContinualClassifier:
        return open_model(folder, {**same, **changes}, resume=False, restart=False, device="cpu")

    open_with().learn(squares(["red"]), checkpoint_dir=folder)
    assert open_with().classes == ["red"]
    for name, value, before in (("method", "linear", "caprompt"), ("seed", 2, 1), ("modulation", 1, 0.1)):
        with pytest.raises(OptionError, match=f"with {name}={before}; '{name}' can only be set for a new model"):
            open_with(**{name: value})
    with pytest.raises(OptionError, match="with alpha=0.0; 'alpha' can only be set"):  # which goes with another training_prompt
        open_with(alpha=5)
    with pytest.raises(OptionError, match="with protocol=honest; 'protocol' can only be set"):  # with another classifier
        open_with(protocol="released")
    with pytest.raises(OptionError, match="with epochs=2, seed=1; 'epochs', 'seed' can only be set"):
        open_with(seed=2, epochs=3)
    with pytest.raises(OptionError, match="'epochs' of caprompt cannot be 'many'"):
        open_with(epochs="many")
    with pytest.raises(UnknownOptionError, match="did you mean 'epochs'"):
        open_with(epoch=2)


def test_stopped_call_must_be_resumed_or_discarded(tmp_path: Path, backbone: Path) -> None:
    learn_and_stop(open_quick(tmp_path / "m", backbone, modulation=1), tmp_path / "m", epoch=1)
    assert "--resume continues" in describe_interrupt(tmp_path / "m", 0)
    with pytest.raises(InputError, match="with --resume, or discard it with --restart"):
        open_quick(tmp_path / "m", backbone)
    assert open_quick(tmp_path / "m", backbone, resume=True).method.options.modulation == 1  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="leave out modulation"):
        open_quick(tmp_path / "m", backbone, resume=True, modulation=2)


def test_stopped_call_is_resumed_with_its_backbone_wherever_that_is(tmp_path: Path) -> None:
    folder, file = tmp_path / "m", write_backbone(tmp_path / "tiny.safetensors")
    learn_and_stop(open_quick(folder, file), folder, epoch=1)
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ModelFolderError, match="is no longer at"):
        open_quick(folder, file, resume=True)
    same = {"backbone": moved, **QUICK}
    assert open_model(folder, same, resume=True, restart=False, device="cpu").backbone.path == moved
    other = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=7))
    with pytest.raises(ModelFolderError, match="the backbone's hash differs"):
        open_model(folder, {"backbone": other}, resume=True, restart=False, device="cpu")


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
    assert " ".join(done.stderr.split()) == (
        "Training: 20 images, so 20 epochs in batches of 16 (40 steps) at learning rate 0.12; "
        "fewer than 50 of a class, so crops of them are learned, too, and 62 % of what training changes is kept"
    )
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
    words += ["--set", "projections=500"]
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


# -- folders -------------------------------------------------------------------------------------------------------------------


def test_folder_of_splits_or_of_one_class_is_refused_with_the_right_path(workspace: Path) -> None:
    for part in ("train", "test"):
        write_squares(workspace / "split" / part, ["blue", "cyan"], each=1)
    assert_refused(workspace, ["learn", "pets", "split"], "such as 'split/train'", caprompt_in_process)
    assert_refused(workspace, ["learn", "pets", "split/train/blue"], "give 'split/train'", caprompt_in_process)


def test_files_that_are_not_images_are_named(workspace: Path, blue_cyan: Path) -> None:
    (blue_cyan / "blue" / "000.png").rename(blue_cyan / "blue" / "photo")
    (blue_cyan / "blue" / "notes.txt").write_text("x")
    shutil.copytree(workspace / "pets", workspace / "named", dirs_exist_ok=True)
    done = caprompt_in_process("learn", "named", "bad", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "Learned 10 images" in done.stdout
    assert "ignored 1 file that is not an image in a known format: blue/notes.txt\n" in done.stderr


def test_names_that_are_not_utf8_are_no_raw_errors(workspace: Path, blue_cyan: Path, quick: tuple[str, ...]) -> None:
    """Of files and of the model."""
    (blue_cyan / "blue" / os.fsdecode(b"b\xe9.png")).write_bytes(b"no image")
    model, flags = os.fsdecode(b"mod\xe8l"), ["--backbone", "tiny.safetensors", *quick]
    assert_refused(workspace, ["learn", model, "bad", *flags], r"bad/blue/b\xe9.png", caprompt_in_process)
    done = caprompt_in_process("learn", model, "bad", "--skip-bad", *flags, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert r"bad/blue/b\xe9.png" in done.stderr
    assert r"'mod\xe8l' now knows 2 classes" in done.stdout
    done = caprompt_in_process("evaluate", model, "bad", "--skip-bad", "--json", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert r"b\xe9.png" in json.loads(done.stdout)["skipped"][0]
    done = caprompt_in_process("run", "--dataset", "bad", "--skip-bad", "--tasks", 2, "--out", "odd run", *flags, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert r"bad/blue/b\xe9.png" in done.stderr
    (blue_cyan / os.fsdecode(b"n\xe4me")).mkdir()
    assert_refused(workspace, ["learn", "pets", "bad"], "cannot be a class name: it is not valid Unicode", caprompt_in_process)


def test_of_many_classes_a_dozen_is_named(workspace: Path) -> None:
    write_squares(workspace / "lots", ["red"], each=40)
    rows = [f"lots/red/{number:03d}.png,c{number}\n" for number in range(40)]
    (workspace / "lots.csv").write_text("".join(rows))
    done = caprompt_in_process(
        "learn", "lots model", "lots.csv", "--backbone", "tiny.safetensors", "--method", "ncm", cwd=workspace
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "(new: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 28 more)" in text


# -- the backbone of a new model -----------------------------------------------------------------------------------------------


def read_backbone_name(model: Path) -> str:
    return str(checkpoint.read_config(model)["backbone"]["name"])


def test_new_model_without_a_backbone_gets_the_embedded_one_where_nobody_can_be_asked(
    tmp_path: Path, backbone_hub: LocalHub
) -> None:
    write_squares(tmp_path / "week1", ["red", "green"])
    done = caprompt_in_process("learn", "pets", "week1", "--method", "ncm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_backbone_name(tmp_path / "pets") == DEFAULT_BACKBONE
    assert done.stderr.startswith(f"Backbone: {DEFAULT_BACKBONE}, which is for demos; better: {DEIT} (23 MB, Apache-2.0), ")
    assert done.stderr.count("\n") == 1
    assert backbone_hub.downloads == []


def test_consent_downloads_a_backbone_and_the_model_keeps_it(
    tmp_path: Path, backbone_hub: LocalHub, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_squares(tmp_path / "week1", ["red", "green"])
    write_squares(tmp_path / "week2", ["blue"])
    done = caprompt_in_process("learn", "pets", "week1", "--yes", *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Backbone: {DEIT} (23 MB, Apache-2.0)\n" in done.stderr
    assert read_backbone_name(tmp_path / "pets") == DEIT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = caprompt_in_process("learn", "pets", "week2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Backbone" not in done.stderr
    assert read_backbone_name(tmp_path / "pets") == DEIT
    done = caprompt_in_process("learn", "others", "week2", "--method", "ncm", cwd=tmp_path)  # offline, with a cached one
    assert done.stderr == f"Backbone: {DEIT}, the best one for this machine\n"
    assert read_backbone_name(tmp_path / "others") == DEIT
    assert backbone_hub.downloads == [f"timm/{DEIT}/model.safetensors"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--yes"], "nowhere"),
        (["week1", "--yes", "--set", "epochs=many"], "option 'epochs' of caprompt cannot be 'many'"),
        (["week1", "--yes", "--method", "magic"], "unknown method 'magic'"),
        (["week1", "--yes", "--offline"], "--yes downloads a better backbone and --offline forbids it"),
        (["week1", "--offline", "--backbone", DEIT], f"'{DEIT}' are not on this machine, and --offline forbids their download"),
    ],
)
def test_nothing_is_downloaded_for_bad_input(tmp_path: Path, backbone_hub: LocalHub, words: list[str], sentence: str) -> None:
    write_squares(tmp_path / "week1", ["red", "green"])
    assert_refused(tmp_path, ["learn", "pets", *words], sentence, caprompt_in_process)
    assert backbone_hub.downloads == []


def test_download_that_fails_leaves_no_model(tmp_path: Path, backbone_hub: LocalHub) -> None:
    backbone_hub.damaged = True
    write_squares(tmp_path / "week1", ["red", "green"])
    sentence = f"the download of '{DEIT}' was deleted: its SHA-256 is"
    assert_refused(tmp_path, ["learn", "pets", "week1", "--yes"], sentence, caprompt_in_process)


def test_default_of_python_and_of_experiments_is_embedded(backbone_hub: LocalHub) -> None:
    assert ContinualClassifier("ncm", device="cpu").backbone.name == DEFAULT_BACKBONE
    assert RunConfig().backbone == DEFAULT_BACKBONE
    assert backbone_hub.downloads == []
