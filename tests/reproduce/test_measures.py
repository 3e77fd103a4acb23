from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import QUICK, squares

from caprompt import ContinualClassifier, InputError
from caprompt.data import Samples
from caprompt.methods.caprompt import CAPrompt
from caprompt.reproduce.measures import by_cycles, concavity, first_layer_keys, given_task, trained_numbers

TASKS = (["red", "green"], ["blue"], ["yellow", "cyan"])


@pytest.fixture(scope="module")
def model(backbone) -> ContinualClassifier:  # type: ignore[no-untyped-def]
    learned = ContinualClassifier(backbone=backbone, classifier="aligned", **QUICK)
    for colours in TASKS:
        learned.learn(squares(colours))
    return learned


@pytest.fixture(scope="module")
def images() -> Samples:
    pictures, labels = squares([colour for task in TASKS for colour in task], each=3, start=50)
    return Samples(tuple(pictures), tuple(labels))


def test_accuracies_are_those_of_evaluate(model: ContinualClassifier, images: Samples) -> None:
    assert given_task(model, images)["ACC"] == model.evaluate(images, give_task=True).average_accuracy
    assert given_task(model, images)["protocol"].startswith("oracle")
    cycles = by_cycles(model, images)["ACC"]
    assert list(cycles) == ["1", "2", "3", "4", "5", "6"]
    auto = by_cycles(model, images)["auto"]
    assert auto == {"ACC": model.evaluate(images, cycles="auto").average_accuracy, "passes": pytest.approx(auto["passes"])}
    assert 1 <= auto["passes"] <= model.method.options.max_cycles  # type: ignore[attr-defined]
    assert cycles["3"] == model.evaluate(images, cycles=3).average_accuracy


def test_keys_and_numbers(model: ContinualClassifier, images: Samples, backbone) -> None:  # type: ignore[no-untyped-def]
    method = model.method
    assert isinstance(method, CAPrompt)
    rows = np.asarray(first_layer_keys(model, images)["rows"])
    np.testing.assert_allclose(rows[1], method.prompts[1][0, 0].detach().numpy(), rtol=1e-6)
    prompt = 2 * 2 * 2 * 32  # layers, keys and values, rows, width
    assert trained_numbers(model) == 3 * prompt + 5 * 32 + 5
    other = ContinualClassifier("linear", backbone, epochs=1)
    other.learn(squares(["red", "green"]))
    assert trained_numbers(other) == 2 * 32 + 2
    with pytest.raises(InputError, match="for caprompt only, not for linear"):
        first_layer_keys(other, images)


@torch.no_grad()
def test_the_theorem_image_by_image(model: ContinualClassifier, images: Samples) -> None:
    """The same figures by the definition, one image and one prompt at a time."""
    from caprompt.engine.inputs import InputPipeline

    method, found = model.method, concavity(model, images)
    assert isinstance(method, CAPrompt)
    feeder = InputPipeline(model.backbone, model.device)
    samples, targets = model.labelled(images, feeder, skip_bad=False)
    e1, e2, margins, deltas = [], [], [], []
    for picture, label in feeder.plain(samples, targets, method.options, 1):
        stem, y = method.vit.stem(picture), int(label)

        def g(prompt: torch.Tensor, stem: object = stem, y: int = y) -> float:
            return float(method.read(method.features_under(stem, prompt.unsqueeze(2))).softmax(dim=1)[0, y])  # type: ignore[union-attr,arg-type]

        p = method.next_weights(method.first_logits(stem))[0]
        mixed = g(sum(w * phi for w, phi in zip(p, method.prompts, strict=True)))  # type: ignore[arg-type]
        single = sum(float(w) * g(phi) for w, phi in zip(p, method.prompts, strict=True))
        old = g((p[0] * method.prompts[0] + p[1] * method.prompts[1]) / (1 - p[2]))
        e1.append(-math.log(mixed))
        e2.append(-math.log(single))
        margins.append(mixed - single)
        deltas.append(float(p[2]) * g(method.prompts[2]) + (1 - float(p[2])) * old - mixed)
    assert found["images"] == 15
    assert found["E1"] == pytest.approx(np.mean(e1), abs=1e-5)
    assert found["E2"] == pytest.approx(np.mean(e2), abs=1e-5)
    assert found["margin"] == pytest.approx(np.mean(margins), abs=1e-6)
    assert found["delta"] == pytest.approx(np.mean(deltas), abs=1e-6)
    assert found["margin_holds"] == pytest.approx(100 * np.mean([margin >= -1e-5 for margin in margins]))
    assert found["delta_holds"] == pytest.approx(100 * np.mean([delta <= 1e-5 for delta in deltas]))
    assert found["delta_newest"] == pytest.approx(np.mean(deltas[9:]), abs=1e-6)
    assert sum(found["margin_histogram"]) == 15


def test_a_leaking_model_has_no_own_prompts(backbone, images: Samples) -> None:  # type: ignore[no-untyped-def]
    leaking = ContinualClassifier(backbone=backbone, protocol="released", classifier="aligned", **QUICK)
    leaking.learn(squares(["red", "green"]))
    with pytest.raises(InputError, match="an image's own prompts"):
        concavity(leaking, images.of_classes(["red", "green"]))
