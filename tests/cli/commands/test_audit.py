"""The command `audit`, and the warnings that every command prints about a leaking model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import LEAKY, assert_refused, make_faint_images, write_backbone, write_images, write_squares
from helpers import caprompt_in_process as caprompt

from caprompt.experiments.audit import Arrangement, Audit, make_joint_warning

QUICK = ["--set", "epochs=1", "--set", "batch_size=8", "--set", "length=4", "--set", "align_epochs=3", "--set", "projections=100"]
RUN = ["run", "--dataset", "squares", "--backbone", "tiny.safetensors", *QUICK]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a dataset and three runs on it: in two tasks, joint, and with the leak."""
    folder = tmp_path_factory.mktemp("audit")
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


def test_clean_audit(workspace: Path) -> None:
    done = caprompt("audit", "pets", "test", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "sorted by task" in done.stdout
    assert json.loads(caprompt("audit", "pets", "test", "--json", cwd=workspace).stdout)["clean"] is True


def get_warnings(folder: Path, *words: object) -> list[str]:
    done = caprompt("audit", "two/model", *words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    warnings: list[str] = json.loads(done.stdout)["warnings"]
    assert [line.removeprefix("warning: ") for line in done.stderr.splitlines()] == warnings
    return warnings


def test_warns_of_test_images_among_the_training_images(folder: Path) -> None:
    assert get_warnings(folder, "squares/test", "--train", "squares/train") == []
    shutil.copytree(folder / "squares" / "test", folder / "overlapping")
    shutil.copy(folder / "squares" / "train" / "red" / "001.png", folder / "overlapping" / "red" / "mine.png")
    (warning,) = get_warnings(folder, "overlapping", "--train", "squares/train")
    assert "1 of the 13 test images" in warning


def make_audit(**accuracies: float) -> Audit:
    return Audit(9, tuple(Arrangement(name, value, value, 0, 0.0) for name, value in accuracies.items()))


def test_accuracy_above_joint_training_is_suspicious() -> None:
    joint = {"ACC": 80.0, "pooled": 80.0}
    assert make_joint_warning(make_audit(alone=80.0, sorted=79.0), joint, "runs/joint") is None
    sentence = make_joint_warning(make_audit(alone=70.0, sorted=81.5), joint, "runs/joint")
    assert sentence is not None
    assert "ACC 81.50" in sentence
    assert "'runs/joint'" in sentence
    assert "(sorted)" in sentence


@pytest.mark.parametrize("joint", ["joint", "joint/results.json"])
def test_joint_accuracy_is_read_from_a_run(folder: Path, joint: str) -> None:
    path = folder / "joint" / "results.json"
    before = path.read_text()
    for accuracy, is_warned in ((100.0, False), (0.0, True)):
        results: dict[str, Any] = json.loads(before)
        results["rows"][0]["accuracies"] = [accuracy]
        path.write_text(json.dumps(results))
        assert any("joint training" in warning for warning in get_warnings(folder, "squares/test", "--joint", joint)) == is_warned
    path.write_text(before)


def test_joint_run_must_match_the_model(folder: Path) -> None:
    def assert_joint_refused(joint: str, sentence: str, model: str = "two/model") -> None:
        assert_refused(folder, ["audit", model, "squares/test", "--joint", joint], sentence, caprompt)

    assert_joint_refused("two", "'two' is not a finished joint training")
    assert_joint_refused("squares", "'squares' does not hold a run")
    assert_joint_refused("joint", "different protocols (honest, released)", model="leak/model")
    plan = json.loads((folder / "joint" / "run.json").read_text())
    for part, changed in (("method", {"config": {"method": "sequential-prompt"}}), ("backbone", {"backbone": {"sha256": "0"}})):
        shutil.copytree(folder / "joint", folder / "other", dirs_exist_ok=True)
        (folder / "other" / "run.json").write_text(json.dumps({**plan, **changed}))
        assert_joint_refused("other", f"it has another {part}")
    (folder / "other" / "run.json").write_text(json.dumps({**plan, "tasks": [["red", "green"]]}))
    assert_joint_refused("other", "it has another set of classes")
    (folder / "other" / "run.json").write_text(json.dumps({**plan, "config": {}}))
    assert_joint_refused("other", "'other' does not hold a run that can be compared with")
    (folder / "other" / "run.json").write_text("{}")
    assert_joint_refused(
        "other", "the run in 'other' was written by another version of caprompt; remove the folder and run it again"
    )


def test_warns_of_a_backbone_that_was_trained_on_the_labels(folder: Path) -> None:
    """The name of the dataset comes from the run of the model; that of the backbone from the model itself."""
    shutil.copytree(folder / "two", folder / "named")
    plan = json.loads((folder / "named" / "run.json").read_text())
    plan["config"]["dataset"] = "imagenet-r"
    (folder / "named" / "run.json").write_text(json.dumps(plan))
    shutil.copy(folder / "tiny.safetensors", folder / "deit_mini.safetensors")
    done = caprompt(
        "audit", "named/model", "squares/test", "--backbone", "deit_mini.safetensors", "--json", "--device", "cpu", cwd=folder
    )
    (warning,) = json.loads(done.stdout)["warnings"]
    assert "'deit_mini'" in warning
    assert "ImageNet-R" in warning


@pytest.mark.slow
def test_name_of_a_dataset_stands_for_its_test_and_training_images(folder: Path) -> None:
    words = ["run", "--dataset", "digits", "--backbone", "tiny.safetensors", "--tasks", 1, "--out", "digits-run", *QUICK]
    assert caprompt(*words, cwd=folder).returncode == 0
    done = caprompt("audit", "digits-run/model", "digits", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] > 300
    assert_refused(folder, ["audit", "digits-run/model", "digit"], "there is no folder or CSV file 'digit'", caprompt)


def test_skipped_images_are_listed(folder: Path) -> None:
    shutil.copytree(folder / "squares" / "test", folder / "broken")
    (folder / "broken" / "red" / "bad.png").write_bytes(b"")
    assert_refused(folder, ["audit", "two/model", "broken"], "bad.png", caprompt)
    done = caprompt("audit", "two/model", "broken", "--skip-bad", cwd=folder)
    assert done.returncode == 0
    assert "bad.png" in done.stderr


def test_audit_of_a_runs_model_is_saved_in_the_run_folder(folder: Path) -> None:
    shutil.copytree(folder / "two", folder / "audited", ignore=shutil.ignore_patterns("audit.json"))
    done = caprompt("audit", "audited/model", "squares/test", cwd=folder)
    assert not (folder / "audited" / "audit.json").exists()
    done = caprompt("audit", "audited/model", "squares/test", "--json", cwd=folder)
    saved = json.loads((folder / "audited" / "audit.json").read_text())
    assert json.loads(done.stdout).items() <= saved.items()
    assert saved["source"] == "squares/test"
    assert saved["state"] == json.loads((folder / "audited" / "model" / "config.json").read_text())["files"]["state.safetensors"]
    shutil.copytree(folder / "two" / "model", folder / "alone")
    assert caprompt("audit", "alone", "squares/test", "--json", cwd=folder).returncode == 0
    assert not (folder / "audit.json").exists()


def test_every_command_warns_of_a_leaking_model(folder: Path) -> None:
    sentence = "warning: this model was trained with protocol=released"
    done = caprompt("predict", "leak/model", "squares/test/red/050.png", "--json", cwd=folder)
    assert sentence in done.stderr
    assert json.loads(done.stdout)[0]["protocol"] == "released"
    assert sentence in caprompt("predict", "leak/model", "squares/test/red/050.png", cwd=folder).stderr
    done = caprompt("evaluate", "leak/model", "squares/test", cwd=folder)
    assert sentence in done.stderr
    assert "protocol=released" in done.stdout
    assert "protocol released: " in done.stdout
    done = caprompt("evaluate", "leak/model", "squares/test", "--json", cwd=folder)
    assert json.loads(done.stdout)["protocol"].startswith("released: ")
    done = caprompt("evaluate", "two/model", "squares/test", cwd=folder)
    assert "released" not in (done.stdout + done.stderr).lower()


def test_audit_detects_the_leak_and_fails(tmp_path: Path) -> None:
    write_backbone(tmp_path / "tiny.safetensors")
    settings = [word for name, value in {**LEAKY, "epochs": 3}.items() for word in ("--set", f"{name}={value}")]
    for task in range(2):
        write_images(tmp_path / f"week{task}", *make_faint_images([2 * task, 2 * task + 1], each=16, seed=task))
        flags = ["--backbone", "tiny.safetensors", *settings] if task == 0 else []
        done = caprompt("learn", "model", f"week{task}", *flags, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "protocol=released" in done.stderr
    write_images(tmp_path / "test", *make_faint_images(range(4), each=16, seed=9))
    done = caprompt("audit", "model", "test", cwd=tmp_path)
    assert done.returncode == 1
    assert "protocol=released" in done.stdout
    assert "predictions change with batch composition; reported accuracies are not valid" in done.stderr
