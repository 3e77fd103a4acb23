"""Evaluation on images of classes that the model has not learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import QUICK, squares, write_squares

from caprompt import ContinualClassifier, InputError
from caprompt.classifier.unlearned import split_learned
from caprompt.data.samples import Samples
from caprompt.errors import OptionError


@pytest.fixture(scope="module")
def model(backbone: Path) -> ContinualClassifier:
    """A model that knows red, green and blue. Read-only."""
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    return model


def make_samples(*labels: str) -> Samples:
    return Samples(tuple(np.full((2, 2), number, np.uint8) for number in range(len(labels))), labels, skipped=("a file",))


def test_unlearned_classes_are_left_out_and_named() -> None:
    known, unlearned = split_learned(make_samples("cat", "fox", "dog", "fox"), ["dog", "cat"], "skip")
    assert known.labels == ("cat", "dog")
    assert known.skipped == ("a file", "class 'fox' (2 images) has not been learned; left out")
    assert unlearned.labels == ("fox", "fox")


def test_samples_of_learned_classes_are_unchanged() -> None:
    samples = make_samples("cat", "dog")
    known, unlearned = split_learned(samples, ["dog", "cat"], "refuse")
    assert known is samples
    assert len(unlearned) == 0


def test_many_unlearned_classes_are_one_sentence() -> None:
    known, _ = split_learned(make_samples("cat", *(f"c{number}" for number in range(40))), ["cat"], "skip")
    assert len(known.skipped) == 2
    assert known.skipped[1].startswith("classes 'c0', 'c1', ")
    assert known.skipped[1].endswith(" more (40 images) have not been learned; left out")


def test_evaluation_leaves_them_out_by_default(model: ContinualClassifier) -> None:
    images, labels = squares(["red", "cyan", "blue"], each=3, start=70)
    evaluation = model.evaluate((images, labels))
    known = [index for index, label in enumerate(labels) if label != "cyan"]
    alone = model.evaluate(([images[index] for index in known], [labels[index] for index in known]))
    assert evaluation.images == 6
    assert evaluation.accuracy == alone.accuracy
    assert evaluation.unlearned == {"cyan": 3}
    assert evaluation.skipped == ("class 'cyan' (3 images) has not been learned; left out",)
    assert evaluation.unknown is None
    assert alone.unlearned == {}


def test_evaluation_refuses_them_on_request(model: ContinualClassifier) -> None:
    with pytest.raises(InputError, match="class 'cyan' has not been learned; this model knows: green, red, blue"):
        model.evaluate(squares(["red", "cyan"]), unknown="refuse")


@pytest.mark.parametrize("unknown", ["skip", "refuse", "count"])
def test_no_learned_class_at_all_is_an_error(model: ContinualClassifier, unknown: str) -> None:
    with pytest.raises(InputError, match="class 'cyan' has not been learned"):
        model.evaluate(squares(["cyan", "white"]), unknown=unknown)


def test_evaluation_counts_them_apart(model: ContinualClassifier) -> None:
    images, labels = squares(["red", "cyan", "blue"], each=3, start=70)
    evaluation = model.evaluate((images, labels), unknown="count")
    scores = [prediction.score for prediction in model.predict(images)]
    known, unknown = [*scores[:3], *scores[6:]], scores[3:6]
    expected = np.mean([(one > other) + (one == other) / 2 for one in known for other in unknown])
    assert evaluation.unknown is not None
    assert evaluation.unknown.images == 3
    assert evaluation.unknown.auroc == pytest.approx(100 * expected)
    assert evaluation.images == 6
    assert evaluation.skipped == ()
    assert model.evaluate(squares(["red"]), unknown="count").unknown is None


def test_unreadable_images_of_unlearned_classes(model: ContinualClassifier, tmp_path: Path) -> None:
    folder = write_squares(tmp_path / "test", ["red", "cyan"], each=2)
    (folder / "cyan" / "bad.png").write_bytes(b"no image")
    evaluation = model.evaluate(folder)  # it is not even read
    assert len(evaluation.skipped) == 1
    with pytest.raises(InputError, match=r"bad\.png"):
        model.evaluate(folder, unknown="count")
    counted = model.evaluate(folder, unknown="count", skip_bad=True)
    assert counted.unknown is not None
    assert counted.unknown.images == 2
    assert "bad.png" in counted.skipped[0]


def test_paths_of_wrong_images(model: ContinualClassifier, tmp_path: Path) -> None:
    folder = write_squares(tmp_path / "test", ["red"], each=2, start=70)
    (folder / "red").rename(folder / "blue")
    mistakes = model.evaluate(folder).mistakes
    assert {mistake.path for mistake in mistakes} <= {str(path) for path in (folder / "blue").iterdir()}
    assert mistakes, "a red square should not be taken for blue"
    assert model.evaluate((squares(["red"])[0], ["blue"] * 5)).mistakes[0].path is None


def test_invalid_arguments(model: ContinualClassifier, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown must be 'skip', 'refuse' or 'count', not 'drop'"):
        model.evaluate(squares(["red"]), unknown="drop")
    with pytest.raises(OptionError, match="leave out give_task"):
        model.evaluate(squares(["red"]), unknown="count", give_task=True)
    with pytest.raises(InputError, match="class 'blue' is in none of the given tasks"):
        model.evaluate(tmp_path / "nowhere", tasks=[["red", "green"]])  # found before the images are looked for
