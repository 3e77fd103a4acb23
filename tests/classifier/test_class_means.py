from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import quick_options, squares

from caprompt import ContinualClassifier, list_methods
from caprompt.classifier.class_means import compute_similarities, explain_missing_means
from caprompt.data.samples import Samples
from caprompt.engine.inputs import InputPipeline

TASKS = (("green", "red"), ("blue", "yellow"))
COLORS = tuple(color for task in TASKS for color in task)
WITH_MEANS = {"caprompt", "hide-prompt", "moal", "mos", "ncm", "ssiat", "tuna"}
STRONG = {"learning_rate": 0.5, "epochs": 20}  # adapters that change the features, so that those of a wrong one are recognized


def teach(method: str, backbone: Path) -> ContinualClassifier:
    """Return a model that has learned four colors in two tasks, one image each."""
    options = {**quick_options(method), **(STRONG if method in ("mos", "tuna") else {})}
    model = ContinualClassifier(method, backbone=backbone, device="cpu", **options)
    for colors in TASKS:
        model.learn(squares(colors, each=1))
    return model


def prepare(model: ContinualClassifier, color: str) -> torch.Tensor:
    """Return a learned image as network input."""
    samples = Samples(tuple(squares([color], each=1)[0]), (color,))
    return next(iter(InputPipeline(model.backbone, model.device).eval_batches(samples, [0], model.method.options)))[0]


@pytest.mark.parametrize("method", sorted(WITH_MEANS))
def test_the_only_image_of_a_class_is_its_mean(backbone: Path, method: str) -> None:
    model = teach(method, backbone)
    assert explain_missing_means(model.method) is None
    num_found = 0
    for index, color in enumerate(COLORS):
        image = prepare(model, color)
        task = int(model.method.predict(image).task_weights.argmax())
        if task == index // 2:  # else its features are those of another task's prompt or adapter
            num_found += 1
            cosines = compute_similarities(model.method, image)
            assert int(cosines.argmax()) == index
            assert float(cosines[index]) == pytest.approx(1, abs=1e-3)
    assert num_found >= 2


def test_methods_without_such_means_say_so(backbone: Path) -> None:
    for method in set(list_methods()) - WITH_MEANS:
        model = ContinualClassifier(method, backbone=backbone, device="cpu", **quick_options(method))
        assert explain_missing_means(model.method) == (
            f"the method {method} stores no single mean of each class in the feature space of its classifier"
        )


def test_a_model_published_without_its_means_says_so(backbone: Path) -> None:
    model = teach("caprompt", backbone)
    model.method.removed_state = frozenset(model.method.list_learning_state())
    assert explain_missing_means(model.method) == "this model was published without its class means"
