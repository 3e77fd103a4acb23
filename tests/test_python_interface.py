"""The Python interface as a user meets it: every kind of input, labels of both types, progress, and errors of one sentence."""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from helpers import QUICK, ROOT, square, squares, write_squares
from PIL import Image
from torch.utils.data import TensorDataset

from caprompt import ContinualClassifier, InputError
from caprompt.callbacks.events import Event, LearnEnded
from caprompt.cli.console import to_flags
from caprompt.errors import DataError, ModelFolderError


def make_model(backbone: Path) -> ContinualClassifier:
    """Return a model that trains quickly and has learned nothing yet."""
    return ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(backbone: Path) -> ContinualClassifier:
    """Return a model that knows red and green."""
    trained = ContinualClassifier("ncm", backbone)
    trained.learn(squares(["red", "green"]))
    return trained


def assert_one_sentence(error: pytest.ExceptionInfo[BaseException]) -> None:
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value)


# -- images to predict -----------------------------------------------------------------------------------------------------


def test_a_path_given_as_text_is_one_image(model: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is also a sequence of characters."""
    Image.fromarray(square("red", 50)).save(tmp_path / "cat.png")
    expected = model.predict_one(square("red", 50))
    for path in (str(tmp_path / "cat.png"), tmp_path / "cat.png"):
        assert model.predict(path) == [expected]
        assert model.predict_one(path) == expected
    monkeypatch.chdir(tmp_path)
    assert model.predict("cat.png") == [expected]
    with pytest.raises(DataError, match=r"there is no image file 'dog\.jpg'; leave it out") as error:
        model.predict("dog.jpg")
    assert_one_sentence(error)


def test_folders_are_predicted_and_refused_as_one_image(model: ContinualClassifier, tmp_path: Path) -> None:
    write_squares(tmp_path, ["red", "green"], each=2)
    for folder in (tmp_path, str(tmp_path)):
        assert len(model.predict(folder)) == 4
    with pytest.raises(DataError, match="is not a readable image") as error:
        model.predict_one(tmp_path)
    assert_one_sentence(error)


def test_every_form_of_an_image_gives_the_same_prediction(model: ContinualClassifier, tmp_path: Path) -> None:
    pixels = square("green", 51)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    tensor = torch.from_numpy(pixels)
    forms = [pixels, Image.fromarray(pixels), content, io.BytesIO(content), tensor, tensor.permute(2, 0, 1), tensor / 255]
    expected = model.predict_one(tmp_path / "a.png")
    for form in forms:
        assert model.predict_one(form) == expected
        assert model.predict(form) == [expected]
        assert model.predict([form]) == [expected]
    with (tmp_path / "a.png").open("rb") as file:
        assert model.predict_one(file) == expected


def test_datasets_and_batches_to_predict(model: ContinualClassifier) -> None:
    images, labels = squares(["red", "green"], each=2, start=40)
    expected = model.predict(images)
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    rows = datasets.Dataset.from_dict({"image": [Image.fromarray(image) for image in images]}).cast_column(
        "image", datasets.Image()
    )
    sources = [np.stack(images), batch, TensorDataset(batch, torch.zeros(4)), iter(images), zip(images, labels, strict=True), rows]
    for source in sources:
        assert model.predict(source) == expected
    assert model.predict([]) == []
    assert model.predict_proba([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([None], "image 0 is a NoneType; give a path"),
        (None, "cannot read images from a NoneType"),
        (3, "cannot read images from a int"),
        ([[1, 2]], "image 0 is a list"),
        (b"no image", "an image file of 8 bytes in memory is not a readable image .*; leave it out"),
        ([np.zeros((4, 4, 7))], "channels.*; leave it out"),
    ],
)
def test_other_values_raise_one_sentence(model: ContinualClassifier, images: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        model.predict(images)
    assert_one_sentence(error)


# -- sources to learn and evaluate -----------------------------------------------------------------------------------------


def test_datasets_teach_and_test_like_arrays(backbone: Path) -> None:
    images, labels = squares(["red", "green"])
    names = ["red", "green"]
    numbers = [names.index(label) for label in labels]
    pixels = [Image.fromarray(image) for image in images]
    features = datasets.Features({"picture": datasets.Image(), "color": datasets.ClassLabel(names=names)})
    rows = datasets.Dataset.from_dict({"picture": pixels, "color": numbers}, features=features)
    tensors = TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(numbers))
    expected = ContinualClassifier("ncm", backbone)
    expected.learn((images, labels))
    test = squares(["red", "green"], start=30)
    for source, arguments in (
        (rows, {}),
        (tensors, {"names": names}),
        (zip(images, labels, strict=True), {}),
        ((images, numbers), {"names": names}),
    ):
        model = ContinualClassifier("ncm", backbone)
        model.learn(source, **arguments)  # type: ignore[arg-type]
        assert sorted(model.classes) == ["green", "red"]
        assert model.score(*test) == expected.score(*test)
    assert expected.evaluate(rows).accuracy == expected.evaluate((images, labels)).accuracy
    assert expected.evaluate(tensors, names=names).accuracy == expected.evaluate((images, labels)).accuracy


def test_generator_is_learned_with_checkpoints(backbone: Path, tmp_path: Path) -> None:
    model = make_model(backbone)
    model.learn(zip(*squares(["red", "green"]), strict=True), checkpoint_dir=tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m").classes == ["green", "red"]


def test_aliases_of_scikit_learn(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    images, labels = squares(["red", "green", "blue"])
    assert model.fit(images, labels) is model
    assert model.fit(squares(["cyan"])).classes == ["blue", "green", "red", "cyan"]
    probabilities = model.predict_proba(images)
    assert probabilities.shape == (15, 4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    predictions = model.predict(images)
    assert [model.classes[index] for index in probabilities.argmax(axis=1)] == [prediction.label for prediction in predictions]
    np.testing.assert_allclose(probabilities.max(axis=1), [prediction.score for prediction in predictions], rtol=1e-6)
    assert model.score(images, labels) == model.score((images, labels)) == model.evaluate((images, labels)).accuracy / 100


# -- labels ----------------------------------------------------------------------------------------------------------------


def test_integers_come_back_as_integers(backbone: Path, tmp_path: Path) -> None:
    images, colors = squares(["red", "green"])
    model = ContinualClassifier("ncm", backbone)
    model.learn((images, np.array([3 if color == "red" else 7 for color in colors])))
    model.save(tmp_path / "m")
    for each in (model, ContinualClassifier.load(tmp_path / "m")):
        assert each.labels == [3, 7]
        assert each.classes == ["3", "7"]
        prediction = each.predict_one(square("red", 50))
        assert prediction.label == 3
        assert {type(score.label) for score in prediction.top} == {int}
        assert json.loads(json.dumps(prediction.as_dict()))["label"] == 3
        assert each.evaluate((images, [3 if color == "red" else 7 for color in colors])).accuracy == 100
    entries = json.loads((tmp_path / "m" / "classes.json").read_text(encoding="utf-8"))
    assert [entry["type"] for entry in entries] == ["int", "int"]


def test_text_labels_are_saved_as_before(backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    model.learn((squares(["red"])[0], ["3"] * 5))
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "classes.json").read_text(encoding="utf-8")) == [{"name": "3", "task": 1, "images": 5}]
    assert ContinualClassifier.load(tmp_path / "m").predict_one(square("red", 9)).label == "3"


def test_one_class_has_labels_of_one_type(backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    with pytest.raises(InputError, match="'3' is both an integer and a text among the labels") as error:
        model.learn((squares(["red"], each=2)[0], ["3", 3]))
    assert_one_sentence(error)
    model.learn((squares(["red"])[0], [3] * 5))
    with pytest.raises(
        InputError, match="class '3' was learned as the integer 3, not as the text '3'; give its label as the integer 3"
    ):
        model.learn((squares(["red"], start=20)[0], ["3"] * 5))
    model.learn((squares(["green"])[0], ["7"] * 5))
    with pytest.raises(InputError, match="class '7' was learned as the text '7', not as the integer 7"):
        model.learn((squares(["green"], start=20)[0], [7] * 5))
    assert model.labels == [3, "7"]
    write_squares(tmp_path, ["red"], start=40)
    (tmp_path / "red").rename(tmp_path / "3")
    model.learn(tmp_path)  # names of folders are text of either type
    assert model.labels == [3, "7"]
    assert model.evaluate(tmp_path).accuracy == 100


def test_changed_classes_forget_their_type(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone)
    images, _ = squares(["red", "green", "blue"])
    model.learn((images, [3] * 5 + [7] * 5 + [9] * 5))
    model.rename("3", "red")
    model.join(["7", "9"], into="7")
    assert model.labels == ["red", 7]
    model.forget("7")
    model.learn((squares(["green"], start=20)[0], ["7"] * 5))
    assert model.labels == ["red", "7"]


def test_failed_call_leaves_the_types(backbone: Path) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, LearnEnded):
            raise KeyboardInterrupt

    model = ContinualClassifier("ncm", backbone)
    with pytest.raises(KeyboardInterrupt):
        model.learn((squares(["red"])[0], [3] * 5), callbacks=fail)
    model.learn((squares(["red"])[0], ["3"] * 5))
    assert model.labels == ["3"]


# -- folders ---------------------------------------------------------------------------------------------------------------


def test_models_are_not_saved_among_other_files(model: ContinualClassifier, backbone: Path, tmp_path: Path) -> None:
    photos = write_squares(tmp_path / "photos", ["red"])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x", encoding="utf-8")
    for folder, name in ((photos, "red"), (tmp_path / "notes", "todo.txt")):
        before = sorted(tmp_path.rglob("*"))
        message = f"'{re.escape(str(folder))}' is not a model but holds other files, such as '{name}'; choose another folder"
        with pytest.raises(ModelFolderError, match=message) as error:
            model.save(folder)
        assert_one_sentence(error)
        with pytest.raises(ModelFolderError, match=message):
            make_model(backbone).learn(squares(["red"]), checkpoint_dir=folder)
        assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".DS_Store").write_bytes(b"")
    model.save(tmp_path / "empty")
    model.save(tmp_path / "empty")
    assert ContinualClassifier.load(tmp_path / "empty").classes == model.classes


# -- messages --------------------------------------------------------------------------------------------------------------


def list_messages(folder: Path) -> list[tuple[str, str]]:
    """Return the file and the text of every string in the modules of a folder, but for docstrings."""
    messages = []
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        messages += [(str(file.relative_to(folder)), text) for text in texts if text not in docstrings]
    return messages


def test_messages_of_the_library_name_arguments_not_flags() -> None:
    """A whole command may have flags."""
    library = [entry for entry in list_messages(ROOT / "src" / "caprompt") if not entry[0].startswith("cli/")]
    sentences = [(file, text) for file, text in library if len(text.split()) > 2 and "<" not in text]
    assert len(sentences) > 500
    flag = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?!:)")
    assert [(file, text) for file, text in sentences if flag.search(text) and "caprompt " not in text] == []


def test_arguments_in_messages_become_flags_on_the_command_line() -> None:
    library = [text for file, text in list_messages(ROOT / "src" / "caprompt") if not file.startswith("cli/")]
    arguments = {argument for text in library for argument in re.findall(r"(?<![\w'])(\w+)=(?:True|\.\.\.)", text)}
    assert {"backbone", "resume", "skip_bad"} <= arguments
    for argument in arguments:
        assert to_flags(f"go on with {argument}=True") == f"go on with --{argument.replace('_', '-')}"


# -- progress --------------------------------------------------------------------------------------------------------------


def test_scripts_stay_silent_and_terminals_show_progress_if_asked(
    backbone: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    for progress in (None, False):
        make_model(backbone).learn(squares(["red", "green"]), progress=progress)
        assert capfd.readouterr() == ("", "")
    make_model(backbone).learn(squares(["red", "green"]), progress=True)
    assert "task 1: green, red" in capfd.readouterr().err


def test_other_arguments_of_learn_are_refused(backbone: Path) -> None:
    arguments: dict[str, Any] = {"progres": True}
    with pytest.raises(TypeError, match="unexpected keyword argument 'progres'"):
        make_model(backbone).learn(squares(["red"]), **arguments)
