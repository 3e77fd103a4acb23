from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_refused, caprompt_in_process, square, write_images, write_squares
from PIL import Image

from caprompt import checkpoint


def test_prints_a_table_or_json(workspace: Path) -> None:
    table = caprompt_in_process("evaluate", "pets", "test", cwd=workspace)
    assert table.returncode == 0, table.stderr
    assert "accuracy, in percent" in table.stdout
    assert "passes per image" in table.stdout
    evaluation = json.loads(caprompt_in_process("evaluate", "pets", "test", "--json", "--cycles", 2, cwd=workspace).stdout)
    assert evaluation["images"] == 6
    assert evaluation["mean_passes"] == 2
    assert evaluation["protocol"].startswith("honest: ")


def test_given_task_is_marked(workspace: Path) -> None:
    done = caprompt_in_process("evaluate", "pets", "test", "--give-task", cwd=workspace)
    assert "protocol=oracle" in done.stdout
    assert "protocol oracle: " in done.stdout


@pytest.fixture(scope="module")
def mixed(workspace: Path) -> Path:
    """A folder of test images in which two red images are labeled green, and blue has not been learned."""
    folder = write_squares(workspace / "mixed", ["red", "green", "blue"], each=3, start=60)
    for number in (90, 91):
        Image.fromarray(square("red", number)).save(folder / "green" / f"{number}.png")
    return folder


def test_mistakes_are_shown(workspace: Path, mixed: Path) -> None:
    done = caprompt_in_process("evaluate", "pets", "mixed", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "skipped: class 'blue' (3 images) has not been learned; left out"
    assert "2 of 5 'green' were taken for 'red'" in done.stdout
    assert "accuracy by class, the worst first" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["green", "5", "60.0", "23.1", "to", "88.2"] in rows
    assert ["red", "3", "100.0", "43.9", "to", "100.0"] in rows
    assert rows.index(["green", "5", "60.0", "23.1", "to", "88.2"]) < rows.index(["red", "3", "100.0", "43.9", "to", "100.0"])
    assert f"{Path('mixed', 'green', '90.png')}: 'green' taken for 'red', score " in done.stdout
    assert "expected calibration error" in done.stdout
    assert "are shown;" not in done.stdout  # nothing was cut


def test_json_has_the_mistakes(workspace: Path, mixed: Path) -> None:
    done = caprompt_in_process("evaluate", "pets", "mixed", "--json", cwd=workspace)
    evaluation = json.loads(done.stdout)
    assert evaluation["images_per_class"] == {"green": 5, "red": 3}
    assert evaluation["confusion"] == {"green": {"green": 3, "red": 2}, "red": {"red": 3}}
    assert {Path(mistake["path"]).name for mistake in evaluation["mistakes"]} == {"90.png", "91.png"}
    assert evaluation["intervals"]["green"] == pytest.approx([23.07, 88.24], abs=0.01)
    assert sum(each["images"] for each in evaluation["reliability"]) == 8
    assert evaluation["unlearned"] == {"blue": 3}
    assert evaluation["unknown"] is None


def test_files_are_written(workspace: Path, mixed: Path) -> None:
    words = ["evaluate", "pets", "mixed", "--wrong", "out/wrong.csv", "--confusion", "out/confusion.png"]
    done = caprompt_in_process(*words, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "written to out/wrong.csv\nwritten to out/confusion.png\n" in done.stdout
    assert Image.open(workspace / "out" / "confusion.png").format == "PNG"
    again = json.loads(caprompt_in_process("evaluate", "pets", "out/wrong.csv", "--json", cwd=workspace).stdout)
    assert (again["images"], again["accuracy"]) == (2, 0)
    words = ["evaluate", "pets", "mixed", "--confusion", "confusion.csv", "--json"]
    assert json.loads(caprompt_in_process(*words, cwd=workspace).stdout)["images"] == 8
    assert (workspace / "confusion.csv").read_text().splitlines() == ["label,green,red", "green,3,2", "red,0,3"]


def test_no_mistakes_are_said_so(workspace: Path) -> None:
    done = caprompt_in_process("evaluate", "pets", "test", cwd=workspace)
    assert "no image was taken for another class" in done.stdout
    assert "taken for '" not in done.stdout


def test_class_without_test_images_is_named(workspace: Path) -> None:
    write_squares(workspace / "only_red", ["red"], each=1, start=60)
    done = caprompt_in_process("evaluate", "pets", "only_red", cwd=workspace)
    assert "1 learned class had no image: green" in done.stdout
    assert ["red", "1", "100.0", "20.7", "to", "100.0"] in [line.split() for line in done.stdout.splitlines()]


def test_three_hundred_classes_are_cut_to_a_screen(workspace: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(300)]
    labels = [f"class {number}" for number in range(300)]
    write_images(workspace / "many", images, labels)
    words = ["learn", "library", "many", "--backbone", "tiny.safetensors", "--method", "ncm"]
    assert caprompt_in_process(*words, cwd=workspace).returncode == 0
    write_images(workspace / "shifted", images[1:], labels[:-1])  # every image is labeled with the class before its own
    cut = caprompt_in_process("evaluate", "library", "shifted", cwd=workspace)
    assert cut.returncode == 0, cut.stderr
    assert len(cut.stdout.splitlines()) < 60
    assert "15 of 299 classes are shown; --all shows all" in cut.stdout
    assert "10 of 299 confusions are shown; --all shows all" in cut.stdout
    assert "5 of 299 wrong images are shown; --wrong FILE.csv writes all to a file" in cut.stdout
    assert "1 learned class had no image: class 299" in cut.stdout
    everything = caprompt_in_process("evaluate", "library", "shifted", "--all", cwd=workspace).stdout
    assert "are shown;" not in everything
    assert everything.count("taken for 'class") == 2 * 299
    assert "1 of 1 'class 7' was taken for 'class 8'" in everything


def test_class_that_was_not_learned(workspace: Path, blue_cyan: Path, mixed: Path) -> None:
    assert_refused(workspace, ["evaluate", "pets", "bad"], "class 'blue' has not been learned", caprompt_in_process)
    words = ["evaluate", "pets", "mixed", "--unknown", "refuse"]
    assert_refused(workspace, words, "class 'blue' has not been learned; this model knows: green, red", caprompt_in_process)
    counted = caprompt_in_process("evaluate", "pets", "mixed", "--unknown", "count", cwd=workspace)
    assert "3 images of classes that have not been learned: AUROC " in counted.stdout
    assert counted.stderr == ""
    document = json.loads(caprompt_in_process("evaluate", "pets", "mixed", "--unknown", "count", "--json", cwd=workspace).stdout)
    assert document["unknown"]["images"] == 3
    assert 0 <= document["unknown"]["auroc"] <= 100


def test_invalid_arguments_write_nothing(workspace: Path, mixed: Path) -> None:
    def refuse(sentence: str, *words: object) -> None:
        assert_refused(workspace, ["evaluate", "pets", "mixed", *words], sentence, caprompt_in_process)

    refuse("--wrong writes .csv files; 'wrong.json' has another ending", "--wrong", "wrong.json")
    refuse("--confusion writes .csv or .png files; 'c.svg' has another ending", "--confusion", "c.svg")
    refuse("drop", "--unknown", "drop")
    refuse("leave out --give-task or --unknown count", "--unknown", "count", "--give-task")


def test_models_saved_with_decomposed_names_match_composed_ones(workspace: Path, quick: tuple[str, ...]) -> None:
    """Earlier versions took class names as the file system gave them."""
    composed, decomposed = (unicodedata.normalize(form, "Löwe") for form in ("NFC", "NFD"))
    write_squares(workspace / "zoo", ["red", "green"])
    (workspace / "zoo" / "red").rename(workspace / "zoo" / composed)
    caprompt_in_process("learn", "zoo model", "zoo", "--backbone", "tiny.safetensors", *quick, cwd=workspace)
    saved = checkpoint.read(workspace / "zoo model")
    names = [{**entry, "name": unicodedata.normalize("NFD", entry["name"])} for entry in saved.classes]
    config = {key: value for key, value in saved.config.items() if key not in ("format", "caprompt", "files", "sha256")}
    checkpoint.write(workspace / "zoo model", replace(saved, config=config, classes=names))
    assert decomposed in (workspace / "zoo model" / "classes.json").read_text(encoding="utf-8")
    for name in (composed, decomposed):
        done = caprompt_in_process("evaluate", "zoo model", "zoo", "--json", cwd=workspace)
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)["per_class"]) == {"green", composed}
        (workspace / "zoo" / name).rename(workspace / "zoo" / decomposed)
    write_squares(workspace / "later zoo", ["red"], start=30)
    (workspace / "later zoo" / "red").rename(workspace / "later zoo" / decomposed)
    done = caprompt_in_process("learn", "zoo model", "later zoo", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "now knows 2 classes" in done.stdout
