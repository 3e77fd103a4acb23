"""The app as a whole: help, exit codes, and one sentence on stderr for bad input to any command."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import assert_refused, caprompt, caprompt_in_process

from caprompt import ContinualClassifier, checkpoint
from caprompt.cli import app
from caprompt.errors import CapromptWarning, InputError


def test_help_shows_examples(tmp_path: Path) -> None:
    assert "caprompt learn pets photos/week1" in caprompt_in_process("--help", cwd=tmp_path).stdout
    for command in ("run", "learn", "predict", "evaluate"):
        assert f"caprompt {command} " in caprompt_in_process(command, "--help", cwd=tmp_path).stdout.split("Examples:")[1]


def test_real_process_exits_with_status_2_on_bad_input(tmp_path: Path) -> None:
    assert_refused(tmp_path, ["run", "--taks", "3"], "--taks", caprompt)


def test_python_m_and_the_installed_command_are_the_same() -> None:
    command = Path(sys.executable).with_name("caprompt")
    if not command.exists():
        pytest.skip("caprompt is not installed")
    installed = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert caprompt("--version").stdout == installed.stdout


def test_errors_of_the_library_name_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise InputError("continue it with resume=True")

    monkeypatch.setattr(app, "app", fail)
    done = caprompt_in_process("learn", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "caprompt: continue it with --resume\n")


def test_keyboard_interrupt_exits_with_status_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "app", interrupt)
    done = caprompt_in_process("learn", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "caprompt: Stopped.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--method", "capromt"], "unknown method 'capromt' (did you mean 'caprompt'?); there are: "),
        (["run", "--dataset", "digits", "--backbone", "vit_giant"], "unknown backbone 'vit_giant'"),
        (["run", "--dataset", "imagenet"], "unknown dataset 'imagenet'"),
        (["run", "--set", "epoch=3"], "unknown option 'epoch' for caprompt (did you mean 'epochs'?)"),
        (["run", "--set", "epochs=none"], "option 'epochs' of caprompt cannot be 'none': it should be a valid integer or 'auto'"),
        (["run", "--set", "epochs"], "should read '--set key=value'"),
        (["run", "--tasks", "few"], "tasks 'few' should be a number (5), sizes (1,4,2) or class names"),
        (["run", "--dataset", "digits", "--tasks", "3,3"], "the task sizes sum to 6 but there are 10 classes"),
        (["run", "--seeds", "0"], "'seeds' must be at least 1"),
        (["run", "--config", "none.toml"], "none.toml"),
        (["run", "--taks", "3"], "--taks"),
        (
            ["lern", "pets", "week1"],
            "unknown command 'lern' (did you mean 'learn'?); the most used are learn, predict, evaluate, run",
        ),
        (["zzz"], "unknown command 'zzz'; the most used are learn, predict, evaluate, run, and caprompt --help lists all"),
        (["learn", "pets"], "source"),
        (["learn", "pets", "week1", "--set", "epochs=3"], "'epochs' can only be set for a new model"),
        (["learn", "week1", "week1"], "'week1' exists but is not a caprompt model"),
        (["predict", "pets"], "no image was given"),
        (["predict", "pets", "test", "--cycles", "0"], "cannot be '0'"),
        (["predict", "pets", "test", "--cycles", "lots"], "--cycles takes a whole number or auto, not 'lots'"),
        (["evaluate", "pets", "test", "--cycles", "2.5"], "--cycles takes a whole number or auto, not '2.5'"),
        (["learn", "pets", "week1", "--resume", "--restart"], "give --resume or --restart, not both"),
        (["learn", "pets", "~nosuchuser/week1"], "'~nosuchuser/week1' is in the home folder of a user who does not exist"),
        (["run", "--dataset", "~nosuchuser/week1"], "'~nosuchuser/week1' is in the home folder of a user who does not exist"),
        (["run", "--resume", "--out", "new"], "there is no run to resume in 'new'; start it without --resume"),
        (["run", "--resume", "--out", "week1", "--seeds", "2"], "there is no run to resume in 'week1'"),
        (["predict", "pets", "test", "--top", "0"], "top must be at least 1"),
        (["predict", "pets", "test", "--device", "nonsense"], "there is no device 'nonsense' here"),
        (
            ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", "1", "--out", "tiny.safetensors"],
            "is not empty",
        ),
        (["learn", "tiny.safetensors/x", "week1", "--backbone", "tiny.safetensors"], "tiny.safetensors"),
        (["run", "--set", "crop_scale=1,0.3"], "option 'crop_scale' of caprompt cannot be '[1, 0.3]': needs 0 < smallest"),
        (["predict", "week1", "test"], "'week1' does not hold a caprompt model"),
        (["methods", "magic"], "unknown method 'magic'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments(workspace: Path, words: list[object], sentence: str) -> None:
    assert_refused(workspace, words, sentence, caprompt_in_process)


def test_bad_toml(workspace: Path) -> None:
    (workspace / "bad.toml").write_text("epochs = = 3")
    assert_refused(workspace, ["run", "--config", "bad.toml"], "'bad.toml' is not valid TOML", caprompt_in_process)
    (workspace / "bad.toml").write_text("epoch = 3")
    assert_refused(workspace, ["run", "--config", "bad.toml"], "unknown option 'epoch'", caprompt_in_process)


def cut(content: bytes) -> bytes:
    return content[:50]


def flip_last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def rename_red(content: bytes) -> bytes:
    return content.replace(b"red", b"rad")


def make_newer(content: bytes) -> bytes:
    return content.replace(f'"format": {checkpoint.FORMAT}'.encode(), b'"format": 99')


@pytest.mark.parametrize(
    "command", [["predict", "damaged", "test"], ["evaluate", "damaged", "test"], ["learn", "damaged", "week1"]]
)
@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("state.safetensors", cut, "state.safetensors of 'damaged' is damaged or was modified"),
        ("state.safetensors", flip_last_bit, "does not match its hash"),
        ("classes.json", rename_red, "classes.json of 'damaged' is damaged or was modified"),
        ("config.json", cut, "config.json of 'damaged' is damaged"),
        ("config.json", make_newer, "was written by a newer caprompt"),
    ],
)
def test_damaged_models(workspace: Path, command: list[object], name: str, change: Callable[[bytes], bytes], sentence: str) -> None:
    shutil.rmtree(workspace / "damaged", ignore_errors=True)
    shutil.copytree(workspace / "pets", workspace / "damaged")
    path = workspace / "damaged" / name
    path.write_bytes(change(path.read_bytes()))
    assert_refused(workspace, command, sentence, caprompt_in_process)


def test_model_without_classes(workspace: Path) -> None:
    ContinualClassifier(backbone=workspace / "tiny.safetensors").save(workspace / "empty")
    assert_refused(workspace, ["predict", "empty", "test"], "has not learned any class yet", caprompt_in_process)
    assert_refused(workspace, ["evaluate", "empty", "test"], "has not learned any class yet", caprompt_in_process)


def test_missing_source(workspace: Path) -> None:
    sentence = "there is no folder or CSV file 'nowhere'"
    assert_refused(workspace, ["learn", "pets", "nowhere"], sentence, caprompt_in_process)
    assert_refused(workspace, ["learn", "new", "nowhere", "--backbone", "tiny.safetensors"], sentence, caprompt_in_process)
    assert_refused(workspace, ["evaluate", "pets", "nowhere"], sentence, caprompt_in_process)
    assert_refused(workspace, ["predict", "pets", "nowhere.png"], "nowhere.png", caprompt_in_process)


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def test_full_disk_names_the_file_and_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = errno.ENOSPC, "No space left on device"
    monkeypatch.setattr(app, "app", fail_with(OSError(*full, "pets/state.safetensors")))
    done = caprompt_in_process("learn", cwd=tmp_path)
    sentence = (
        "caprompt: 'pets/state.safetensors' cannot be written: No space left on device; free some space and repeat the command\n"
    )
    assert (done.returncode, done.stderr) == (2, sentence)
    monkeypatch.setattr(app, "app", fail_with(OSError(*full)))
    assert caprompt_in_process("learn", cwd=tmp_path).stderr.startswith("caprompt: the output cannot be written: No space")


def test_own_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def warn(*arguments: object, **options: object) -> None:
        for _ in range(2):
            warnings.warn("learn it with skip_bad=True", CapromptWarning, stacklevel=1)

    monkeypatch.setattr(app, "app", warn)
    done = caprompt_in_process("learn", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "warning: learn it with --skip-bad\n" * 2)


def test_closed_pipe_is_silent(workspace: Path) -> None:
    """As in `caprompt predict ... | head -1`."""
    words = [sys.executable, "-m", "caprompt", "predict", "pets", *["test"] * 500, "--csv"]
    process = subprocess.Popen(words, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("path,label,score")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1
