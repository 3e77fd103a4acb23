"""The command `audit`, and a leaking model in every command: what they say besides the figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import LEAKY, assert_refused, faint, write_backbone, write_pictures, write_squares
from helpers import caprompt_here as caprompt

from caprompt.experiments.audit import Arrangement, Audit, joint_warning

pytestmark = pytest.mark.slow

QUICK = ["--set", "epochs=1", "--set", "batch_size=8", "--set", "length=4", "--set", "align_epochs=3", "--set", "projections=100"]
RUN = ["run", "--dataset", "squares", "--backbone", "tiny.safetensors", *QUICK]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set and three runs on it: in two tasks, jointly, and with the leak."""
    folder = tmp_path_factory.mktemp("place")
    write_backbone(folder / "tiny.safetensors")
    write_squares(folder / "squares" / "train", ["red", "green", "blue", "cyan"])
    write_squares(folder / "squares" / "test", ["red", "green", "blue", "cyan"], each=3, start=50)
    for name, words in (
        ("two", ["--tasks", 2]),
        ("joint", ["--tasks", 1]),
        ("leak", ["--tasks", 2, "--protocol", "released", "--set", "classifier=aligned"]),
    ):
        done = caprompt(*RUN, *words, "--out", name, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def warnings_of(place: Path, *words: object) -> list[str]:
    done = caprompt("audit", "two/model", *words, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)["warnings"]
    assert [line.removeprefix("warning: ") for line in done.stderr.splitlines()] == found
    return found


def test_test_images_among_the_training_images(place: Path) -> None:
    assert warnings_of(place, "squares/test", "--train", "squares/train") == []
    shutil.copytree(place / "squares" / "test", place / "spoilt")
    shutil.copy(place / "squares" / "train" / "red" / "001.png", place / "spoilt" / "red" / "mine.png")
    assert warnings_of(place, "spoilt", "--train", "squares/train") == ["1 of the 13 test images are among the training images too"]


def figures(**accuracies: float) -> Audit:
    return Audit(9, tuple(Arrangement(name, value, value, 0, 0.0) for name, value in accuracies.items()))


def test_better_than_joint_training_is_a_warning_sign() -> None:
    joint = {"ACC": 80.0, "pooled": 80.0}
    assert joint_warning(figures(alone=80.0, sorted=79.0), joint, "runs/joint") is None
    sentence = joint_warning(figures(alone=70.0, sorted=81.5), joint, "runs/joint")
    assert sentence is not None
    assert "ACC 81.50" in sentence
    assert "'runs/joint'" in sentence
    assert "(sorted)" in sentence


@pytest.mark.parametrize("given", ["joint", "joint/results.json"])
def test_the_joint_figure_comes_from_a_run(place: Path, given: str) -> None:
    path = place / "joint" / "results.json"
    before = path.read_text()
    for accuracy, warned in ((100.0, False), (0.0, True)):
        results: dict[str, Any] = json.loads(before)
        results["rows"][0]["accuracies"] = [accuracy]
        path.write_text(json.dumps(results))
        assert any("joint training" in warning for warning in warnings_of(place, "squares/test", "--joint", given)) == warned
    path.write_text(before)


def test_a_run_that_is_no_joint_training_of_the_same_is_refused(place: Path) -> None:
    def refuse(joint: str, sentence: str, model: str = "two/model") -> None:
        assert_refused(place, ["audit", model, "squares/test", "--joint", joint], sentence, caprompt)

    refuse("two", "'two' is no finished joint training")
    refuse("squares", "'squares' does not hold a run")
    refuse("joint", "different protocols (honest, released)", model="leak/model")
    plan = json.loads((place / "joint" / "run.json").read_text())
    for part, changed in (("method", {"config": {"method": "sequential-prompt"}}), ("backbone", {"backbone": {"sha256": "0"}})):
        shutil.copytree(place / "joint", place / "other", dirs_exist_ok=True)
        (place / "other" / "run.json").write_text(json.dumps({**plan, **changed}))
        refuse("other", f"it has another {part}")
    (place / "other" / "run.json").write_text(json.dumps({**plan, "tasks": [["red", "green"]]}))
    refuse("other", "it has another set of classes")
    (place / "other" / "run.json").write_text(json.dumps({**plan, "config": {}}))
    refuse("other", "'other' does not hold a run that can be compared with")
    (place / "other" / "run.json").write_text("{}")
    refuse("other", "the run in 'other' was written by another version of caprompt; remove the folder and run it again")


def test_a_backbone_that_knows_the_labels(place: Path) -> None:
    """The data set's name is in the run that the model belongs to; the backbone's is the model's own."""
    shutil.copytree(place / "two", place / "named")
    plan = json.loads((place / "named" / "run.json").read_text())
    plan["config"]["dataset"] = "imagenet-r"
    (place / "named" / "run.json").write_text(json.dumps(plan))
    shutil.copy(place / "tiny.safetensors", place / "deit_mini.safetensors")
    done = caprompt(
        "audit", "named/model", "squares/test", "--backbone", "deit_mini.safetensors", "--json", "--device", "cpu", cwd=place
    )
    assert json.loads(done.stdout)["warnings"] == [
        "the backbone 'deit_mini' was trained with the labels of ImageNet-1k, and ImageNet-R's classes are among them: none is new"
    ]


def test_a_data_set_by_name_brings_its_test_and_training_images(place: Path) -> None:
    words = ["run", "--dataset", "digits", "--backbone", "tiny.safetensors", "--tasks", 1, "--out", "digits-run", *QUICK]
    assert caprompt(*words, cwd=place).returncode == 0
    done = caprompt("audit", "digits-run/model", "digits", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] > 300
    assert_refused(place, ["audit", "digits-run/model", "digit"], "there is no folder or CSV file 'digit'", caprompt)


def test_pictures_that_were_left_out_are_listed(place: Path) -> None:
    shutil.copytree(place / "squares" / "test", place / "broken")
    (place / "broken" / "red" / "bad.png").write_bytes(b"")
    assert_refused(place, ["audit", "two/model", "broken"], "bad.png", caprompt)
    done = caprompt("audit", "two/model", "broken", "--skip-bad", cwd=place)
    assert done.returncode == 0
    assert "bad.png" in done.stderr


def test_the_audit_of_a_runs_model_is_kept_with_the_run(place: Path) -> None:
    shutil.copytree(place / "two", place / "audited", ignore=shutil.ignore_patterns("audit.json"))
    done = caprompt("audit", "audited/model", "squares/test", cwd=place)
    assert not (place / "audited" / "audit.json").exists()
    done = caprompt("audit", "audited/model", "squares/test", "--json", cwd=place)
    kept = json.loads((place / "audited" / "audit.json").read_text())
    assert json.loads(done.stdout).items() <= kept.items()
    assert kept["source"] == "squares/test"
    assert kept["state"] == json.loads((place / "audited" / "model" / "config.json").read_text())["files"]["state.safetensors"]
    shutil.copytree(place / "two" / "model", place / "alone")
    assert caprompt("audit", "alone", "squares/test", "--json", cwd=place).returncode == 0
    assert not (place / "audit.json").exists()


def test_a_leaking_model_says_so_in_every_command(place: Path) -> None:
    sentence = "warning: this model was trained under the protocol 'released'"
    done = caprompt("predict", "leak/model", "squares/test/red/050.png", "--json", cwd=place)
    assert sentence in done.stderr
    assert json.loads(done.stdout)[0]["protocol"] == "released"
    assert sentence in caprompt("predict", "leak/model", "squares/test/red/050.png", cwd=place).stderr
    done = caprompt("evaluate", "leak/model", "squares/test", cwd=place)
    assert sentence in done.stderr
    assert "RELEASED" in done.stdout
    assert "protocol released: " in done.stdout
    done = caprompt("evaluate", "leak/model", "squares/test", "--json", cwd=place)
    assert json.loads(done.stdout)["protocol"].startswith("released: ")
    done = caprompt("evaluate", "two/model", "squares/test", cwd=place)
    assert "released" not in (done.stdout + done.stderr).lower()


def test_the_leak_is_found_and_fails(tmp_path: Path) -> None:
    write_backbone(tmp_path / "tiny.safetensors")
    settings = [word for name, value in {**LEAKY, "epochs": 3}.items() for word in ("--set", f"{name}={value}")]
    for task in range(2):
        write_pictures(tmp_path / f"week{task}", *faint([2 * task, 2 * task + 1], each=16, seed=task))
        begun = ["--backbone", "tiny.safetensors", *settings] if task == 0 else []
        done = caprompt("learn", "model", f"week{task}", *begun, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "protocol 'released'" in done.stderr
    write_pictures(tmp_path / "test", *faint(range(4), each=16, seed=9))
    done = caprompt("audit", "model", "test", cwd=tmp_path)
    assert done.returncode == 1
    assert "RELEASED" in done.stdout
    assert "answers of this model depend on the company that an image is in" in done.stderr
