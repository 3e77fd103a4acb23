from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import assert_refused, caprompt, caprompt_in_process, read_tree, write_squares
from PIL import Image


def test_writes_a_figure_and_says_what_it_shows(workspace: Path) -> None:
    before = read_tree(workspace / "pets")
    done = caprompt_in_process("explain", "pets", "test/red/060.png", "-o", "figures/why.png", cwd=workspace)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("'red' with score ")
    assert "against 'green' with " in lines[0]
    assert lines[1].startswith("heat map: fit 0.")
    assert lines[1].endswith(" over 256 copies")
    assert lines[2].startswith("nearest class means: 'red' ")
    assert lines[3] == "written to figures/why.png"
    with Image.open(workspace / "figures" / "why.png") as figure:
        assert figure.format == "PNG"
    assert read_tree(workspace / "pets") == before


@pytest.mark.slow
def test_works_as_a_person_types_it(workspace: Path) -> None:
    done = caprompt("explain", "pets", "test/green/061.png", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "written to explanation.png"
    assert (workspace / "explanation.png").is_file()


def test_prints_the_same_as_json(workspace: Path) -> None:
    before = read_tree(workspace)
    words = ("explain", "pets", "test/red/060.png", "--json", "--against", "green", "--copies", 64, "--cycles", 3)
    done = caprompt_in_process(*words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["image"], data["label"], data["against"]["label"]) == ("test/red/060.png", "red", "green")
    assert [len(row) for row in data["heat"]] == [4, 4, 4, 4]
    assert data["copies"] == 64
    assert len(data["task_weights"]) == 3
    assert data["nearest"][0]["label"] == "red"
    assert read_tree(workspace) == before
    assert caprompt_in_process(*words, cwd=workspace).stdout == done.stdout
    with_figure = caprompt_in_process(*words, "-o", "why.svg", cwd=workspace)
    assert with_figure.stdout == done.stdout
    assert (workspace / "why.svg").is_file()


IMAGE = "test/red/060.png"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pets", "none.png"), "there is no image file 'none.png'; name another one"),
        (("pets", "test/red"), "'test/red' is not a readable image"),
        (("pets", "tiny.safetensors"), "'tiny.safetensors' is not a readable image"),
        (("pets", IMAGE, "-o", "why.jpg"), "let its name end in .png, .svg or .pdf"),
        (("pets", IMAGE, "-o", "test"), "let its name end in .png, .svg or .pdf"),
        (("pets", IMAGE, "--against", "blue"), "class 'blue' has not been learned; this model knows: green, red"),
        (("pets", IMAGE, "--against", "red"), "the image is predicted as 'red' itself; name another class"),
        (("pets", IMAGE, "--copies", "5"), "copies must be at least 32, not 5"),
        (("pets", IMAGE, "--cycles", "many"), "--cycles takes a whole number or auto, not 'many'"),
        (("no-model", IMAGE), "no-model"),
    ],
)
def test_bad_input_is_refused(workspace: Path, words: tuple[str, ...], sentence: str) -> None:
    assert_refused(workspace, ["explain", *words], sentence, caprompt_in_process)


def test_a_model_of_one_class_is_refused(workspace: Path, quick: tuple[str, ...]) -> None:
    write_squares(workspace / "single", ["red"])
    assert caprompt_in_process("learn", "one", "single", "--backbone", "tiny.safetensors", *quick, cwd=workspace).returncode == 0
    sentence = "an explanation compares two classes, but this model has learned only one; teach it another one first"
    assert_refused(workspace, ["explain", "one", IMAGE], sentence, caprompt_in_process)


def test_a_method_without_class_means_says_so(workspace: Path) -> None:
    words = ("learn", "regression", "week1", "--backbone", "tiny.safetensors", "--method", "ranpac")
    options = ("--set", "projections=100", "--set", "bottleneck=4", "--set", "epochs=1")
    assert caprompt_in_process(*words, *options, cwd=workspace).returncode == 0
    done = caprompt_in_process("explain", "regression", IMAGE, "--copies", 32, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "nearest class means: left out, the method ranpac stores no single mean of each class" in done.stdout
