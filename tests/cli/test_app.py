"""The command line as a person types it: each command is a process of its own, in a folder of its own."""

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
from pathlib import Path

import pytest
from helpers import assert_refused, caprompt, square, write_backbone, write_squares
from PIL import Image

from caprompt import checkpoint

pytestmark = pytest.mark.slow

QUICK = ["--set", "epochs=2", "--set", "batch_size=4", "--set", "length=4", "--set", "align_epochs=3", "--set", "projections=100"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backbone, photos of three weeks and a test, and a model that knows the first week's classes."""
    folder = tmp_path_factory.mktemp("place")
    write_backbone(folder / "tiny.safetensors")
    write_squares(folder / "week1", ["red", "green"])
    write_squares(folder / "test", ["red", "green"], each=3, start=60)
    done = caprompt("learn", "pets", "week1", "--backbone", "tiny.safetensors", *QUICK, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_unequal_tasks_and_more_of_an_old_class_on_plain_folders(tmp_path: Path) -> None:
    """Tasks of 1, 4, 2 and 3 classes, then further images of an old one."""
    write_backbone(tmp_path / "tiny.safetensors")
    weeks = [["red"], ["green", "blue", "yellow", "purple"], ["cyan", "white"], ["black", "orange", "grey"]]
    for number, colours in enumerate(weeks, start=1):
        write_squares(tmp_path / f"week{number}", colours)
        settings = ["--backbone", "tiny.safetensors", *QUICK] if number == 1 else []
        done = caprompt("learn", "pets", f"week{number}", *settings, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    write_squares(tmp_path / "later", ["green"], start=30)
    done = caprompt("learn", "pets", "later", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "more of: green" in done.stdout
    assert "10 classes" in done.stdout
    classes = json.loads((tmp_path / "pets" / "classes.json").read_text())
    assert [sum(entry["task"] == task for entry in classes) for task in (1, 2, 3, 4)] == [1, 4, 2, 3]
    assert next(entry["images"] for entry in classes if entry["name"] == "green") == 10
    write_squares(tmp_path / "test", [colour for week in weeks for colour in week], each=2, start=60)
    done = caprompt("evaluate", "pets", "test", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["images"] == 20
    assert [task["images"] for task in found["tasks"]] == [2, 8, 4, 6]


def test_predict_as_table_and_as_json(place: Path) -> None:
    table = caprompt("predict", "pets", "test/red/060.png", cwd=place)
    assert table.returncode == 0
    assert "test/red/060.png" in table.stdout
    done = caprompt("predict", "pets", "test/red/060.png", "test/green", "--json", "--top", 1, cwd=place)
    found = json.loads(done.stdout)
    assert [Path(entry["image"]).name for entry in found] == ["060.png", "060.png", "061.png", "062.png"]
    assert all(len(entry["top"]) == 1 and entry["label"] in ("red", "green") for entry in found)
    auto = caprompt("predict", "pets", "test/red/060.png", "--json", "--cycles", "auto", cwd=place)
    assert json.loads(auto.stdout)[0]["passes"] == 1


def test_audit_says_clean(place: Path) -> None:
    done = caprompt("audit", "pets", "test", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "sorted by task" in done.stdout
    assert json.loads(caprompt("audit", "pets", "test", "--json", cwd=place).stdout)["clean"] is True


def test_run_ends_with_a_table_and_says_where(place: Path) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 2, "--out", "out", *QUICK]
    done = caprompt(*words, "--seeds", 2, cwd=place)
    assert done.returncode == 0, done.stderr
    for word in ("ACC", "AF", "saved in out/seed0", "saved in out/seed1", "mean", "protocol honest"):
        assert word in done.stdout
    assert (place / "out" / "seed1" / "results.json").is_file()
    assert_refused(place, [*words, "--seeds", 2], "is not empty")


def test_a_joint_run_tells_the_accuracy_of_each_task(place: Path) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 2, "--out", "joint", "--joint"]
    done = caprompt(*words, "--method", "finetune", "--set", "epochs=1", cwd=place)
    assert done.returncode == 0, done.stderr
    for word in ("all classes learned at once", "finetune-joint on week1", "protocol joint"):
        assert word in done.stdout
    assert len(json.loads((place / "joint" / "results.json").read_text())["rows"]) == 1


def test_runs_are_numbered_and_a_finished_one_cannot_be_resumed(place: Path) -> None:
    words = ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", 1, *QUICK]
    for expected in ("runs/week1-caprompt-tiny-seed0", "runs/week1-caprompt-tiny-seed0-2"):
        assert f"saved in {expected}\n" in caprompt(*words, cwd=place).stdout
    assert_refused(place, [*words, "--resume"], "there is no unfinished run like this")


def test_config_file_and_set_and_flags(place: Path) -> None:
    (place / "quick.toml").write_text(
        'dataset = "week1"\nbackbone = "tiny.safetensors"\ntasks = [["green"], ["red"]]\nepochs = 1\nlength = 4\nprojections = 50\n'
    )
    done = caprompt("run", "--config", "quick.toml", "--set", "epochs=2", "--seed", 5, "--out", "configured", cwd=place)
    assert done.returncode == 0, done.stderr
    plan = json.loads((place / "configured" / "run.json").read_text())
    assert plan["tasks"] == [["green"], ["red"]]
    assert plan["options"]["epochs"] == 2
    assert plan["config"]["seed"] == 5


def test_ctrl_c_stops_cleanly_and_resume_goes_on(place: Path) -> None:
    write_squares(place / "many", ["blue", "cyan"], each=40)
    shutil.copytree(place / "pets", place / "stopped")
    words = ["learn", "slow", "many", "--backbone", "tiny.safetensors", "--set", "epochs=150", "--set", "length=4"]
    process = subprocess.Popen(
        [sys.executable, "-m", "caprompt", *words], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (place / "slow" / "in-progress" / "config.json").exists():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.strip() == "caprompt: Stopped; --resume goes on after the last whole epoch."
    assert_refused(place, ["predict", "slow", "test"], "continue it with --resume")
    assert_refused(place, ["learn", "slow", "many"], "--resume, or give it up with --restart")
    done = caprompt("learn", "slow", "many", "--resume", cwd=place)
    assert done.returncode == 0, done.stderr
    assert caprompt(*words[:1], "straight", *words[2:], cwd=place).returncode == 0
    states = [(place / name / "state.safetensors").read_bytes() for name in ("slow", "straight")]
    assert states[0] == states[1]
    assert_refused(place, ["learn", "slow", "many", "--resume"], "there is nothing to resume")


def test_names_are_printed_as_they_are(place: Path) -> None:
    """Square brackets are markup to the terminal library, but not to us."""
    write_squares(place / "odd names", ["blue"])
    (place / "odd names" / "blue").rename(place / "odd names" / "dog[red]")
    done = caprompt("learn", "brackets", "odd names", "--backbone", "tiny.safetensors", *QUICK, cwd=place)
    assert "dog[red]" in done.stdout
    (place / "a[").mkdir()
    shutil.copy(place / "test" / "red" / "060.png", place / "a[" / "b].png")
    assert "a[/b].png" in caprompt("predict", "brackets", "a[/b].png", cwd=place).stdout


def test_help_teaches_by_example() -> None:
    assert "caprompt learn pets photos/week1" in caprompt("--help").stdout
    for command in ("run", "learn", "predict", "evaluate"):
        assert f"caprompt {command} " in caprompt(command, "--help").stdout.split("Examples:")[1]


def png_that_claims_to_be_huge() -> bytes:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = b"IHDR" + header
    end = b"\x00\x00\x00\x00IEND\xaeB`\x82"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + body + struct.pack(">I", zlib.crc32(body)) + end


@pytest.fixture
def bad(place: Path, request: pytest.FixtureRequest) -> Path:
    """A fresh folder of photos to spoil, inside the place."""
    folder = place / "bad"
    shutil.rmtree(folder, ignore_errors=True)
    return write_squares(folder, ["blue", "cyan"])


def test_missing_folder(place: Path) -> None:
    assert_refused(place, ["learn", "pets", "nowhere"], "there is no folder or CSV file 'nowhere'")
    assert_refused(place, ["learn", "new", "nowhere", "--backbone", "tiny.safetensors"], "there is no folder or CSV file 'nowhere'")
    assert_refused(place, ["evaluate", "pets", "nowhere"], "there is no folder or CSV file 'nowhere'")
    assert_refused(place, ["predict", "pets", "nowhere.png"], "nowhere.png")


def test_empty_class(place: Path, bad: Path) -> None:
    (bad / "void").mkdir()
    assert_refused(place, ["learn", "pets", "bad"], "bad/void' has no images")


def test_corrupt_image_is_named_or_skipped_and_listed(place: Path, bad: Path) -> None:
    (bad / "blue" / "broken.png").write_bytes((bad / "blue" / "000.png").read_bytes()[:60])
    assert_refused(place, ["learn", "pets", "bad"], "bad/blue/broken.png")
    shutil.copytree(place / "pets", place / "copy", dirs_exist_ok=True)
    done = caprompt("learn", "copy", "bad", "--skip-bad", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "bad/blue/broken.png" in "".join(done.stderr.split())
    assert "Learned 10 images" in done.stdout
    assert_refused(place, ["predict", "pets", "bad"], "bad/blue/broken.png")
    assert len(json.loads(caprompt("predict", "pets", "bad", "--skip-bad", "--json", cwd=place).stdout)) == 10


def test_one_image_in_two_classes(place: Path, bad: Path) -> None:
    shutil.copy(bad / "blue" / "000.png", bad / "cyan" / "same.png")
    assert_refused(place, ["learn", "pets", "bad"], "are the same image")


def test_class_name_that_is_no_file_name(place: Path, bad: Path) -> None:
    (place / "list.csv").write_text("path,label\nbad/blue/000.png,a/b\n")
    assert_refused(place, ["learn", "pets", "list.csv"], "a/b")


def test_decompression_bomb(place: Path, bad: Path) -> None:
    (bad / "blue" / "bomb.png").write_bytes(png_that_claims_to_be_huge())
    assert_refused(place, ["learn", "pets", "bad"], "bad/blue/bomb.png")
    assert_refused(place, ["predict", "pets", "bad/blue/bomb.png"], "bad/blue/bomb.png")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["run", "--method", "capromt"],
            "unknown method 'capromt' (did you mean 'caprompt'?); there are: ",
        ),
        (["run", "--backbone", "vit_giant"], "unknown backbone 'vit_giant'"),
        (["run", "--dataset", "imagenet"], "unknown data set 'imagenet'"),
        (["run", "--set", "epoch=3"], "unknown option 'epoch' for caprompt (did you mean 'epochs'?)"),
        (["run", "--set", "epochs=none"], "option 'epochs' of caprompt cannot be 'none'"),
        (["run", "--set", "epochs"], "should read '--set key=value'"),
        (["run", "--tasks", "few"], "tasks 'few' should be a number (5), sizes (1,4,2) or class names"),
        (["run", "--tasks", "3,3"], "the task sizes sum to 6 but there are 10 classes"),
        (["run", "--seeds", "0"], "'seeds' must be at least 1"),
        (["run", "--config", "none.toml"], "none.toml"),
        (["run", "--taks", "3"], "--taks"),
        (["lern", "pets", "week1"], "lern"),
        (["learn", "pets"], "source"),
        (["learn", "pets", "week1", "--set", "epochs=3"], "'epochs' can only be set when a model is begun"),
        (["learn", "week1", "week1"], "'week1' exists but is not a caprompt model"),
        (["predict", "pets"], "no image was given"),
        (["predict", "pets", "test", "--cycles", "0"], "cannot be '0'"),
        (["predict", "pets", "test", "--top", "0"], "top must be at least 1"),
        (["predict", "pets", "test", "--device", "nonsense"], "there is no device 'nonsense' here"),
        (
            ["run", "--dataset", "week1", "--backbone", "tiny.safetensors", "--tasks", "1", "--out", "tiny.safetensors"],
            "is not empty",
        ),
        (["learn", "tiny.safetensors/x", "week1", "--backbone", "tiny.safetensors"], "tiny.safetensors"),
        (["run", "--set", "crop_scale=1,0.3"], "needs 0 < smallest <= largest <= 1"),
        (["predict", "week1", "test"], "'week1' does not hold a caprompt model"),
        (["methods", "magic"], "unknown method 'magic'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_words(place: Path, words: list[object], sentence: str) -> None:
    assert_refused(place, words, sentence)


def test_bad_toml(place: Path) -> None:
    (place / "bad.toml").write_text("epochs = = 3")
    assert_refused(place, ["run", "--config", "bad.toml"], "'bad.toml' is not valid TOML")
    (place / "bad.toml").write_text("epoch = 3")
    assert_refused(place, ["run", "--config", "bad.toml"], "unknown option 'epoch'")


@pytest.mark.parametrize("command", [["predict", "spoilt", "test"], ["evaluate", "spoilt", "test"], ["learn", "spoilt", "week1"]])
def test_damaged_models(place: Path, command: list[object]) -> None:
    spoilt = place / "spoilt"

    def spoil(name: str, change: object, sentence: str) -> None:
        shutil.rmtree(spoilt, ignore_errors=True)
        shutil.copytree(place / "pets", spoilt)
        (spoilt / name).write_bytes(change((spoilt / name).read_bytes()))  # type: ignore[operator]
        assert_refused(place, command, sentence)

    def newer(content: bytes) -> bytes:
        return content.replace(f'"format": {checkpoint.FORMAT}'.encode(), b'"format": 99')

    spoil("state.safetensors", lambda content: content[:100], "state.safetensors of 'spoilt' is damaged or has been altered")
    spoil("state.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1]), "does not match its recorded hash")
    spoil(
        "classes.json", lambda content: content.replace(b"red", b"rad"), "classes.json of 'spoilt' is damaged or has been altered"
    )
    spoil("config.json", lambda content: content[:50], "config.json of 'spoilt' is damaged")
    spoil("config.json", newer, "was written by a newer caprompt")


def test_a_model_without_any_class(place: Path) -> None:
    script = "from caprompt import ContinualClassifier as C; C(backbone='tiny.safetensors').save('empty')"
    subprocess.run([sys.executable, "-c", script], cwd=place, check=True)
    assert_refused(place, ["predict", "empty", "test"], "has not learned any class yet")
    assert_refused(place, ["evaluate", "empty", "test"], "has not learned any class yet")


def test_a_class_that_was_not_learned(place: Path, bad: Path) -> None:
    assert_refused(place, ["evaluate", "pets", "bad"], "class 'blue' has not been learned")


def test_odd_pictures_are_welcome(place: Path) -> None:
    """Grey, palette, alpha, 16-bit and rotated pictures, nested and in mixed formats."""
    odd = place / "odd" / "mix"
    (odd / "deep" / "er").mkdir(parents=True)
    picture = Image.fromarray(square("orange", 1))
    picture.convert("L").save(odd / "grey.jpg")
    picture.convert("P").save(odd / "palette.gif")
    picture.convert("RGBA").save(odd / "deep" / "alpha.webp")
    picture.convert("L").convert("I;16").save(odd / "deep" / "er" / "sixteen.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(odd / "turned.JPG", exif=exif)
    done = caprompt("learn", "odds", "odd", "--backbone", "tiny.safetensors", *QUICK, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "Learned 5 images" in done.stdout
