"""Prediction and evaluation with images prepared in batches, as on a GPU."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import QUICK, square, squares, write_squares
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.calibration import Calibration
from caprompt.classifier import prediction
from caprompt.data import image_cache
from caprompt.data.images import ImageInput, Pixels, decode
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import CapromptError, DataError


@pytest.fixture
def model(backbone: Path, monkeypatch: pytest.MonkeyPatch) -> ContinualClassifier:
    """Return a model of two classes whose images are prepared as on a GPU."""
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "blue"]))
    monkeypatch.setattr(prediction, "InputPipeline", partial(InputPipeline, batched=True))
    return model


def test_every_form_of_images_gives_the_same_predictions(model: ContinualClassifier, tmp_path: Path) -> None:
    arrays = [square(color, seed) for seed in range(20) for color in ("red", "blue")]
    folder = tmp_path / "files"
    folder.mkdir()
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(folder / f"{number:03d}.png")
    expected = model.predict(arrays)
    assert model.predict(np.stack(arrays)) == expected
    assert model.predict([Image.fromarray(array) for array in arrays]) == expected
    assert model.predict(folder) == expected
    assert model.predict(torch.from_numpy(np.stack(arrays))) == expected
    assert [model.predict_one(array) for array in arrays] == expected


def test_evaluation_decodes_every_image_once(model: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[ImageInput] = []

    def record(image: ImageInput, shrink_to: int | None = None) -> Pixels:
        decoded.append(image)
        return decode(image, shrink_to)

    folder = write_squares(tmp_path / "photos", ["red", "blue"], start=30)
    expected = model.evaluate(folder, skip_bad=True)
    monkeypatch.setattr(image_cache, "decode", record)
    assert model.evaluate(folder) == expected
    assert sorted(map(str, decoded)) == sorted(str(path) for path in folder.rglob("*.png"))


def test_evaluation_says_which_image_is_unreadable(model: ContinualClassifier, tmp_path: Path) -> None:
    folder = write_squares(tmp_path / "photos", ["red", "blue"])
    (folder / "red" / "002.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"002\.png' is not a readable image .*skip_bad=True"):
        model.evaluate(folder)
    assert len(model.evaluate(folder, skip_bad=True).skipped) == 1
    images, labels = squares(["red", "blue"])
    with pytest.raises(DataError, match=r"image 3 of class 'red' cannot be used: .*int64"):
        model.evaluate(([*images[:3], images[3].astype(np.int64), *images[4:]], labels))


def test_one_image_in_two_classes_is_refused(model: ContinualClassifier) -> None:
    images, labels = squares(["red", "blue"])
    with pytest.raises(DataError, match="are the same image"):
        model.evaluate((images[:-1] + images[:1], labels))


def test_scores_that_are_no_numbers_raise(model: ContinualClassifier) -> None:
    model.calibration = Calibration(factor=math.nan, images=9)
    for call in (model.predict, model.predict_proba):
        with pytest.raises(CapromptError, match="the scores of this model are not finite"):
            call([square("red", 0)])
