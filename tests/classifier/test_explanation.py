from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import COLORS, QUICK, equal_tensors, quick_options, squares
from numpy.typing import NDArray

from caprompt import ContinualClassifier, list_methods
from caprompt.classifier.explanation import Explanation
from caprompt.classifier.occlusion import remove_patches, select_hottest
from caprompt.data.samples import Samples
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import DataError, InputError, OptionError

PLACE = (0, 2)  # row and column of the patch that tells the classes apart; the grid is 4 x 4
SIDE, EDGE, PATCH = 18, 1, 4  # images are not resized, and lose an edge of one pixel
COPIES = 128


def draw_marked(color: str, seed: int) -> NDArray[np.uint8]:
    """Return gray noise with one patch in a color."""
    image = np.random.default_rng(seed).integers(120, 136, (SIDE, SIDE, 3)).astype(np.uint8)
    top, left = (EDGE + PATCH * place for place in PLACE)
    image[top : top + PATCH, left : left + PATCH] = COLORS[color]
    return image


def draw_lesson(colors: Sequence[str], each: int = 8, start: int = 0) -> tuple[list[NDArray[np.uint8]], list[str]]:
    return [draw_marked(color, start + n) for color in colors for n in range(each)], [
        color for color in colors for _ in range(each)
    ]


def teach(method: str, backbone: Path, **options: Any) -> ContinualClassifier:
    model = ContinualClassifier(method, backbone=backbone, device="cpu", **{**quick_options(method), **options})
    model.learn(draw_lesson(["red", "blue"]))
    model.learn(draw_lesson(["green", "white"]))
    return model


@pytest.fixture(scope="module")
def model(backbone: Path) -> ContinualClassifier:
    return teach("caprompt", backbone, test_crop=0.875)


def measure_drops(
    model: ContinualClassifier, image: NDArray[np.uint8], explanation: Explanation, share: float
) -> tuple[float, float]:
    """Return how much the margin falls without the hottest share of patches, and without as many random ones on average."""
    rng, marked = np.random.default_rng(0), select_hottest(torch.from_numpy(explanation.heat), share)
    others = [torch.from_numpy(rng.permutation(marked.flatten().numpy()).reshape(4, 4)) for _ in range(20)]
    removals = torch.stack([marked, *others])
    batches = InputPipeline(model.backbone, model.device).eval_batches(Samples((image,), ("x",)), [0], model.method.options, 1)
    network_input = next(iter(batches))[0][0]
    logits = model.method.predict(remove_patches(network_input, removals)).logits
    first, second = (model.classes.index(str(each.label)) for each in (explanation.predicted, explanation.against))
    drops = explanation.margin - (logits[:, first] - logits[:, second])
    return float(drops[0]), float(drops[1:].mean())


@pytest.mark.parametrize("method", ["caprompt", "ncm", "ranpac", "ease"])
def test_the_evidence_is_found_where_it_is(backbone: Path, method: str) -> None:
    model = teach(method, backbone)
    for color in ("red", "green"):
        explanation = model.explain(draw_marked(color, seed=100), copies=COPIES)
        assert explanation.predicted.label == color
        assert explanation.heat.shape == (4, 4)
        assert np.unravel_index(explanation.heat.argmax(), (4, 4)) == PLACE
        assert explanation.fit > 0.5


def test_removing_the_marked_patches_costs_more_than_removing_others(model: ContinualClassifier) -> None:
    images = [draw_marked("red", seed=200 + number) for number in range(6)]
    drops = [measure_drops(model, image, model.explain(image, copies=COPIES), 0.125) for image in images]
    marked, others = np.mean(drops, axis=0)
    assert marked > 0
    assert marked > 2 * others


@pytest.mark.parametrize("method", list_methods())
def test_every_method_can_be_explained(backbone: Path, method: str) -> None:
    model = ContinualClassifier(method, backbone=backbone, device="cpu", **quick_options(method))
    model.learn(squares(["red", "blue"], each=3))
    model.learn(squares(["green"], each=3))
    before = {name: tensor.clone() for name, tensor in model.method.state_dict().items()}
    image = squares(["green"], each=1, start=50)[0][0]
    prediction = model.predict_one(image)
    explanation = model.explain(image, copies=64)
    marked, others = measure_drops(model, image, explanation, 0.25)
    assert marked > others
    assert explanation.predicted == prediction.top[0]
    assert explanation.against == prediction.top[1]
    assert np.isfinite(explanation.heat).all()
    assert (explanation.no_means is None) == bool(explanation.nearest)
    assert np.allclose(np.sum(explanation.task_weights, axis=1), 1, atol=1e-4)
    assert len(explanation.task_weights) == (prediction.passes if method == "caprompt" else 1)
    again = model.explain(image, copies=64)
    assert np.array_equal(explanation.heat, again.heat)
    assert equal_tensors(before, model.method.state_dict())
    assert not model.method.vit._forward_hooks
    assert model.predict_one(image) == prediction


def test_task_weights_follow_the_passes(model: ContinualClassifier) -> None:
    image = draw_marked("green", seed=100)
    for cycles in (1, 3):
        explanation = model.explain(image, copies=32, cycles=cycles)
        assert len(explanation.task_weights) == cycles
    first = model.predict_one(image, cycles=2).task_weights  # the second pass uses what the first one gave
    assert explanation.task_weights[0] == pytest.approx(first, abs=1e-5)


def test_another_class_can_be_compared_with(model: ContinualClassifier) -> None:
    image = draw_marked("red", seed=100)
    ranked = [score.label for score in model.predict_one(image).top]
    explanation = model.explain(image, against=ranked[3], copies=COPIES)
    assert explanation.against.label == ranked[3]
    assert not np.allclose(explanation.heat, model.explain(image, copies=COPIES).heat)
    with pytest.raises(InputError, match="is predicted as 'red' itself; name another"):
        model.explain(image, against="red")
    with pytest.raises(InputError, match="class 'pink' has not been learned; this model knows: blue, red, green, white"):
        model.explain(image, against="pink")


def test_joined_classes_are_one(backbone: Path) -> None:
    model = teach("ncm", backbone)
    model.join(["red", "white"], into="warm")
    explanation = model.explain(draw_marked("red", seed=100), copies=COPIES)
    assert explanation.predicted.label == "warm"
    assert [each.label for each in explanation.nearest].count("warm") == 1
    assert len(explanation.nearest) == 3


def test_integer_labels_stay_integers(backbone: Path) -> None:
    model = ContinualClassifier("ncm", backbone=backbone, device="cpu")
    images, _ = squares(["red", "blue"], each=2)
    model.learn((images, [7, 7, 12, 12]))
    explanation = model.explain(images[0], against=12, copies=32)
    assert (explanation.predicted.label, explanation.against.label) == (7, 12)


def test_data_of_an_explanation_is_json(model: ContinualClassifier) -> None:
    data = json.loads(json.dumps(model.explain(draw_marked("red", seed=100), copies=32).as_dict()))
    assert data["label"] == "red"
    assert np.shape(data["heat"]) == (4, 4)
    assert data["tasks"] == [["blue", "red"], ["green", "white"]]
    assert data["no_means"] is None


def test_the_shown_image_is_what_the_network_sees(model: ContinualClassifier) -> None:
    wide = np.zeros((SIDE, 3 * SIDE, 3), np.uint8)
    wide[:, SIDE : 2 * SIDE] = draw_marked("red", seed=100)
    shown = model.explain(wide, copies=32).image
    assert np.array_equal(shown, wide[EDGE : EDGE + 16, SIDE + EDGE : SIDE + EDGE + 16])


def test_what_cannot_be_explained_is_refused(backbone: Path, tmp_path: Path, model: ContinualClassifier) -> None:
    image = draw_marked("red", seed=100)
    empty = ContinualClassifier("ncm", backbone=backbone, device="cpu")
    with pytest.raises(InputError, match="this model has learned none; teach it another one first"):
        empty.explain(image)
    empty.learn(draw_lesson(["red"]))
    with pytest.raises(InputError, match="this model has learned only one; teach it another one first"):
        empty.explain(image)
    with pytest.raises(OptionError, match="copies must be at least 32, not 3"):
        model.explain(image, copies=3)
    with pytest.raises(DataError, match="there is no image file '.*none.png'; name another one"):
        model.explain(tmp_path / "none.png")


def test_predictions_that_depend_on_the_batch_are_refused(backbone: Path) -> None:
    leaky = ContinualClassifier(backbone=backbone, device="cpu", **{**QUICK, "protocol": "released", "classifier": "aligned"})
    leaky.learn(draw_lesson(["red", "blue"]))
    with pytest.raises(InputError, match="depends on the other images of its batch, so it cannot be explained"):
        leaky.explain(draw_marked("red", seed=100))
