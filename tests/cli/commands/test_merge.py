from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import assert_refused, caprompt_in_process, write_backbone, write_squares

FLAGS = ("--method", "ridge", "--backbone", "tiny.safetensors", "--set", "projections=60")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models of different photos, and one that was taught both."""
    folder = tmp_path_factory.mktemp("shards")
    write_backbone(folder / "tiny.safetensors")
    write_squares(folder / "north-photos", ["red", "green"])
    write_squares(folder / "south-photos", ["green", "blue"], start=50)
    for model, sources in (("north", ["north"]), ("south", ["south"]), ("both", ["south", "north"])):
        for number, source in enumerate(sources):
            done = caprompt_in_process("learn", model, f"{source}-photos", *(() if number else FLAGS), cwd=folder)
            assert done.returncode == 0, done.stderr
    return folder


def predict(folder: Path, model: str) -> list[str]:
    done = caprompt_in_process("predict", model, "north-photos", "south-photos", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return [prediction["label"] for prediction in json.loads(done.stdout)]


def test_merged_model_predicts_as_one_that_was_taught_everything(shards: Path) -> None:
    done = caprompt_in_process("merge", "north", "south", "--into", "merged", cwd=shards)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Merged 2 models: 'merged' now knows 3 classes from 20 images.\n"
    assert predict(shards, "merged") == predict(shards, "both")
    info = caprompt_in_process("info", "merged", cwd=shards)
    assert "merged 'north', 'south'" in info.stdout


def test_refusals_are_one_sentence_and_change_nothing(shards: Path) -> None:
    assert_refused(shards, ("merge", "north", "--into", "x"), "two or more different models are needed", caprompt_in_process)
    assert_refused(
        shards,
        ("merge", "north", "both", "--into", "x"),
        "10 image(s) of 'both' were learned by 'north' as well and would count twice; if both were "
        "taught from copies of one model, give that with --base",
        caprompt_in_process,
    )
    assert_refused(shards, ("merge", "north", "south", "--into", "both"), "'both' holds a model already", caprompt_in_process)
    assert_refused(shards, ("merge", "north", "nowhere", "--into", "x"), "'nowhere' does not hold a caprompt", caprompt_in_process)
    assert_refused(
        shards, ("merge", "north", "south", "--into", "north-photos"), "is not a model but holds other files", caprompt_in_process
    )
