from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from caprompt import InputError
from caprompt.data.sources import read_source
from caprompt.methods import MethodOutput
from caprompt.outputs import Evaluation, make_evaluation
from caprompt.report import evaluation_files

CLASSES = ["cat", "dog", "=cow"]


def make_result(images: list[Path], classes: list[str] = CLASSES) -> Evaluation:
    """Return an evaluation in which the first class is predicted for images of the first and of the last class."""
    targets = torch.tensor([0] + [len(classes) - 1] * (len(images) - 1))
    logits = torch.zeros(len(images), len(classes))
    logits[:, 0] = 2.0
    output = MethodOutput(logits, torch.ones(len(images), 1), torch.ones(len(images)))
    return make_evaluation(output, targets, classes, [classes], images=images)


def read_rows(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_wrong_images_can_be_read_as_a_source(tmp_path: Path) -> None:
    inside, outside = tmp_path / "lists" / "a, b" / "1.png", tmp_path / "test" / "2.png"
    evaluation = make_result([inside, inside, outside], ["cat", "dog", "cow"])
    path = tmp_path / "lists" / "wrong.csv"
    evaluation_files.write_wrong(evaluation, path)
    header, first, second = read_rows(path)
    assert header == ["path", "label", "predicted", "score"]
    assert first[:3] == ["a, b/1.png", "cow", "cat"]
    assert 0 < float(first[3]) < 1
    assert second[0] == str(outside)
    samples = read_source(path)
    assert [Path(image).resolve() for image in samples.images] == [inside, outside]  # type: ignore[arg-type]
    assert samples.labels == ("cow", "cow")


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    evaluation = make_result([tmp_path / "=cow" / "1.png"] * 2)
    evaluation_files.write_wrong(evaluation, tmp_path / "wrong.csv")
    evaluation_files.write_confusion(evaluation, tmp_path / "confusion.csv")
    cells = [cell for name in ("wrong.csv", "confusion.csv") for row in read_rows(tmp_path / name) for cell in row]
    assert "'=cow" in cells
    assert "./=cow/1.png" in cells
    assert not any(cell.startswith(("=", "@", "+", "-")) for cell in cells)


def test_no_mistakes_give_a_header(tmp_path: Path) -> None:
    evaluation_files.write_wrong(make_result([tmp_path / "1.png"]), tmp_path / "wrong.csv")
    assert len(read_rows(tmp_path / "wrong.csv")) == 1


def test_confusion_matrix_has_every_class(tmp_path: Path) -> None:
    evaluation_files.write_confusion(make_result([tmp_path / "1.png"] * 3, ["cat", "dog", "cow"]), tmp_path / "confusion.csv")
    assert read_rows(tmp_path / "confusion.csv") == [
        ["label", "cat", "dog", "cow"],
        ["cat", "1", "0", "0"],
        ["dog", "0", "0", "0"],
        ["cow", "2", "0", "0"],
    ]


@pytest.mark.parametrize("count", [1, 3, 40, 300])
def test_confusion_matrix_is_drawn(tmp_path: Path, count: int) -> None:
    classes = [f"class $ {number} $" for number in range(count)]
    evaluation_files.write_confusion(make_result([tmp_path / "1.png"] * 3, classes), tmp_path / "new" / "confusion.png")
    image = Image.open(tmp_path / "new" / "confusion.png")
    assert image.format == "PNG"
    assert 400 < image.width < 3000
    colors = {color for _, color in image.convert("RGB").getcolors(1 << 24)}
    assert (8, 48, 107) in colors  # the darkest blue: all images of the first class are right


def test_very_many_classes_are_listed_by_pair(tmp_path: Path) -> None:
    evaluation = make_result([tmp_path / "1.png"] * 3, [f"c{number}" for number in range(evaluation_files.MAX_MATRIX_CLASSES + 1)])
    evaluation_files.write_confusion(evaluation, tmp_path / "confusion.csv")
    assert read_rows(tmp_path / "confusion.csv") == [["label", "predicted", "images"], ["c0", "c0", "1"], ["c1000", "c0", "2"]]
    with pytest.raises(InputError, match=r"would show 1,001 classes, more than 1,000; write a \.csv file instead"):
        evaluation_files.write_confusion(evaluation, tmp_path / "confusion.png")
    assert not (tmp_path / "confusion.png").exists()


def test_images_in_memory_have_no_path(tmp_path: Path) -> None:
    evaluation = make_result([tmp_path / "1.png"] * 2)
    unnamed = replace(evaluation, mistakes=tuple(replace(mistake, path=None) for mistake in evaluation.mistakes))
    evaluation_files.write_wrong(unnamed, tmp_path / "wrong.csv")
    assert read_rows(tmp_path / "wrong.csv")[1][0] == ""


def test_paths_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--wrong writes \.csv files; 'wrong\.txt' has another ending"):
        evaluation_files.check_export(Path("wrong.txt"), [".csv"], "--wrong")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        evaluation_files.check_export(tmp_path / "folder.csv", [".csv"], "--wrong")
    evaluation_files.check_export(tmp_path / "NEW.CSV", [".csv"], "--wrong")
