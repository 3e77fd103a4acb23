from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import QUICK, squares

from caprompt import ContinualClassifier, InputError
from caprompt.data import Samples
from caprompt.methods.caprompt import CAPrompt
from caprompt.reproduce.measures import by_cycles, concavity, count_trained_parameters, first_layer_keys, given_task

TASKS = (["red", "green"], ["blue"], ["yellow", "cyan"])


@pytest.fixture(scope="module")
def model(backbone) -> ContinualClassifier:  # type: ignore[no-untyped-def]
    learned = ContinualClassifier(backbone=backbone, classifier="aligned", **QUICK)
    for colors in TASKS:
        learned.learn(squares(colors))
    return learned


@pytest.fixture(scope="module")
def images() -> Samples:
    arrays, labels = squares([color for task in TASKS for color in task], each=3, start=50)
    return Samples(tuple(arrays), tuple(labels))


def test_accuracies_are_those_of_evaluate(model: ContinualClassifier, images: Samples) -> None:
    assert given_task(model, images)["ACC"] == model.evaluate(images, give_task=True).average_accuracy
    assert given_task(model, images)["protocol"].startswith("oracle")
    cycles = by_cycles(model, images)["ACC"]
    assert list(cycles) == ["1", "2", "3", "4", "5", "6"]
    auto = by_cycles(model, images)["auto"]
    assert auto == {"ACC": model.evaluate(images, cycles="auto").average_accuracy, "passes": pytest.approx(auto["passes"])}
    assert 1 <= auto["passes"] <= model.method.options.max_cycles  # type: ignore[attr-defined]
    assert cycles["3"] == model.evaluate(images, cycles=3).average_accuracy


def test_first_layer_keys_and_parameter_count(model: ContinualClassifier, images: Samples, backbone) -> None:  # type: ignore[no-untyped-def]
    method = model.method
    assert isinstance(method, CAPrompt)
    rows = np.asarray(first_layer_keys(model, images)["rows"])
    np.testing.assert_allclose(rows[1], method.prompts[1][0, 0].detach().numpy(), rtol=1e-6)
    prompt = 2 * 2 * 2 * 32  # layers, keys and values, rows, width
    assert count_trained_parameters(model) == 3 * prompt + 5 * 32 + 5
    other = ContinualClassifier("linear", backbone, epochs=1)
    other.learn(squares(["red", "green"]))
    assert count_trained_parameters(other) == 2 * 32 + 2
    with pytest.raises(InputError, match="for caprompt only, not for linear"):
        first_layer_keys(other, images)


@torch.no_grad()
def test_theorem_terms_match_their_definition(model: ContinualClassifier, images: Samples) -> None:
    """Compute the terms by the definition, one image and one prompt at a time."""
    from caprompt.engine.inputs import InputPipeline

    method, result = model.method, concavity(model, images)
    assert isinstance(method, CAPrompt)
    feeder = InputPipeline(model.backbone, model.device)
    samples, targets = model.read_labeled(images, feeder, skip_bad=False)
    e1, e2, margins, deltas = [], [], [], []
    for image, label in feeder.eval_batches(samples, targets, method.options, 1):
        stem, y = method.vit.stem(image), int(label)

        def g(prompt: torch.Tensor, stem: object = stem, y: int = y) -> float:
            return float(method.classify(method.extract_features(stem, prompt.unsqueeze(2))).softmax(dim=1)[0, y])  # type: ignore[union-attr,arg-type]

        p = method.compute_task_weights(method.compute_first_logits(stem))[0]
        mixed = g(sum(w * phi for w, phi in zip(p, method.prompts, strict=True)))  # type: ignore[arg-type]
        single = sum(float(w) * g(phi) for w, phi in zip(p, method.prompts, strict=True))
        old = g((p[0] * method.prompts[0] + p[1] * method.prompts[1]) / (1 - p[2]))
        e1.append(-math.log(mixed))
        e2.append(-math.log(single))
        margins.append(mixed - single)
        deltas.append(float(p[2]) * g(method.prompts[2]) + (1 - float(p[2])) * old - mixed)
    assert result["images"] == 15
    assert result["E1"] == pytest.approx(np.mean(e1), abs=1e-5)
    assert result["E2"] == pytest.approx(np.mean(e2), abs=1e-5)
    assert result["margin"] == pytest.approx(np.mean(margins), abs=1e-6)
    assert result["delta"] == pytest.approx(np.mean(deltas), abs=1e-6)
    assert result["margin_holds"] == pytest.approx(100 * np.mean([margin >= -1e-5 for margin in margins]))
    assert result["delta_holds"] == pytest.approx(100 * np.mean([delta <= 1e-5 for delta in deltas]))
    assert result["delta_newest"] == pytest.approx(np.mean(deltas[9:]), abs=1e-6)
    assert sum(result["margin_histogram"]) == 15


def test_theorem_is_refused_for_a_released_model(backbone, images: Samples) -> None:  # type: ignore[no-untyped-def]
    leaking = ContinualClassifier(backbone=backbone, protocol="released", classifier="aligned", **QUICK)
    leaking.learn(squares(["red", "green"]))
    with pytest.raises(InputError, match="an image's own prompts"):
        concavity(leaking, images.select_classes(["red", "green"]))
