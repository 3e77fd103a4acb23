"""What must hold for every method. A new method is tested by these before its author writes a test.

Each check takes a function that makes a fresh model of the method under test.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers import quick_options, same_tensors, square, squares
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.callbacks.events import Consolidating, Event, StepEnded
from caprompt.data import Samples, read_source
from caprompt.engine.inputs import InputPipeline
from caprompt.engine.trainer import trainable_parameters

Make = Callable[..., ContinualClassifier]
Check = Callable[[Make], None]

FIRST, SECOND, THIRD = ("red", "green"), ("blue",), ("yellow", "purple", "cyan")


def maker(name: str, backbone: Path) -> Make:
    """Makes quick models of a method."""

    def make(**settings: Any) -> ContinualClassifier:
        return ContinualClassifier(name, backbone, **{**quick_options(name), **settings})

    return make


def trained(make: Make, **settings: object) -> ContinualClassifier:
    model = make(**settings)
    for task in (FIRST, SECOND, THIRD):
        model.learn(squares(task))
    return model


def tensor_images(model: ContinualClassifier, count: int) -> Tensor:
    colours = [*FIRST, *SECOND, *THIRD]
    pictures = [square(colours[number % len(colours)], 500 + number) for number in range(count)]
    samples: Samples = read_source((pictures, ["any"] * count))
    return torch.cat(
        [images for images, _ in InputPipeline(model.backbone, model.device).plain(samples, [0] * count, model.method.options)]
    )


def check_batch_invariance(make: Make) -> None:
    """Batches of 1, 7 and 64 and a shuffled order give the same logits and task weights, whatever the switches."""
    known = make().method.options.model_dump()
    switches: list[dict[str, object]] = [
        {},
        {"cycles": "auto"},
        {"cycles": 3},
        {"first_pass": "query"},
        {"classifier": "aligned"},
        {"aggregation": False},
    ]
    switches += [{"adapt_first": False}]
    for chosen in switches:
        if chosen.keys() <= known.keys():
            assert_batch_invariant(trained(make, **chosen))


def assert_batch_invariant(model: ContinualClassifier) -> None:
    images = tensor_images(model, 70)
    alone = [model.method.predict(image[None]) for image in images]
    logits, weights = (torch.cat([getattr(a, name) for a in alone]) for name in ("logits", "task_weights"))
    assert logits.std(dim=0).max() > 1e-3, "the images should not all look the same to the model"
    rounding = 3e-5 if hasattr(model.method.options, "ridge_scale") else 1e-5  # logits that are twenty times a regression's
    order = torch.from_numpy(np.random.default_rng(0).permutation(70))
    for size in (7, 64):
        for arrangement in (torch.arange(70), order):
            answers = [model.method.predict(images[part]) for part in arrangement.split(size)]
            torch.testing.assert_close(torch.cat([a.logits for a in answers]), logits[arrangement], rtol=1e-6, atol=rounding)
            torch.testing.assert_close(torch.cat([a.task_weights for a in answers]), weights[arrangement], rtol=0, atol=1e-5)


def check_half_precision_backbone(make: Make) -> None:
    """With the backbone in bfloat16 a method learns and answers; what it learned is float32, and its answers are much the same."""
    model = trained(make, precision="bf16")
    assert all(tensor.dtype != torch.bfloat16 for tensor in model.method.state().values())
    pictures, _ = squares((*FIRST, *SECOND, *THIRD), start=400)
    half, exact = model.predict(pictures), model.predict(pictures, precision="fp32")
    assert np.mean([a.label == b.label for a, b in zip(half, exact, strict=True)]) > 0.8
    assert np.mean([abs(a.score - b.score) for a, b in zip(half, exact, strict=True)]) < 0.1


def check_growth_with_unequal_tasks(make: Make) -> None:
    """Tasks of 2, 1 and 3 classes; the logits have a column per class and the weights one per task, summing to one."""
    model = trained(make)
    assert model.tasks == [["green", "red"], ["blue"], ["cyan", "purple", "yellow"]]
    answer = model.method.predict(tensor_images(model, 5))
    assert answer.logits.shape == (5, 6)
    assert answer.task_weights.shape == (5, 3)
    torch.testing.assert_close(answer.task_weights.sum(dim=1), torch.ones(5))


def check_learns(make: Make) -> None:
    """A single easy task is learned well above chance."""
    model = make(epochs=10, learning_rate=0.01)
    model.learn(squares(("red", "blue", "yellow"), each=10))
    assert model.evaluate(squares(("red", "blue", "yellow"), start=300)).accuracy > 60


def check_same_seed_same_model(make: Make) -> None:
    """Everything random follows from the seed; a method that draws nothing is the same under every seed."""
    one, same, other = trained(make), trained(make), trained(make, seed=1)
    assert same_tensors(one.method.state(), same.method.state())
    assert same_tensors(one.method.state(), other.method.state()) != draws(make)
    assert draws(make) or not one.method.epochs, "what is trained has a random start"


def draws(make: Make) -> bool:
    """Does the method take anything from the generator that a task begins with?"""
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    make().method.begin_task(2, generator)
    return not torch.equal(generator.get_state(), before)


def check_save_load_learn_equals_learning_on(make: Make) -> None:
    """A model that was saved and loaded after every call ends bit-equal to one that was not."""
    straight = trained(make)
    with tempfile.TemporaryDirectory() as folder:
        model = make()
        for task in (FIRST, SECOND, THIRD):
            model.learn(squares(task))
            model.save(Path(folder))
            model = ContinualClassifier.load(folder)
        assert same_tensors(model.method.state(), straight.method.state())
        assert model.classes == straight.classes
        assert model.predict_one(square("blue", 9)) == straight.predict_one(square("blue", 9))


def check_resumed_equals_uninterrupted(make: Make) -> None:
    """Stopped in the second epoch of the second task, or before consolidation if it has none, and resumed: the same bits."""
    straight = make()
    for task in (FIRST, THIRD):
        straight.learn(squares(task))

    class StopError(Exception):
        pass

    def stop_midway(event: Event) -> None:
        if (isinstance(event, StepEnded) and event.epoch == 1) or isinstance(event, Consolidating):
            raise StopError

    with tempfile.TemporaryDirectory() as folder:
        model = make()
        model.learn(squares(FIRST), folder=folder)
        before = {name: tensor.clone() for name, tensor in model.method.state().items()}
        try:
            model.learn(squares(THIRD), folder=folder, listen=stop_midway)
        except StopError:
            assert same_tensors(model.method.state(), before), "a call that fails leaves the model as it was"
        else:
            raise AssertionError("the call should have been stopped")
        model = ContinualClassifier.load(folder)
        model.learn(squares(THIRD), folder=folder, resume=True)
        assert same_tensors(model.method.state(), straight.method.state())


def check_one_image_equals_many(make: Make) -> None:
    """`predict_one` says what `predict` says of the same picture among others."""
    model = trained(make)
    pictures, _ = squares(FIRST, start=700)
    for one, many in zip((model.predict_one(p) for p in pictures), model.predict(pictures), strict=True):
        assert one.label == many.label
        assert abs(one.score - many.score) < 1e-5


def check_further_images_of_known_classes(make: Make) -> None:
    """More images of old classes come alone or with new classes; no class is doubled, and the model does change."""
    model = trained(make)
    before = {name: tensor.clone() for name, tensor in model.method.state().items()}
    model.learn(squares(("red", "blue"), start=800))
    assert model.tasks == [["green", "red"], ["blue"], ["cyan", "purple", "yellow"]]
    assert not same_tensors(model.method.state(), before)
    model.learn(squares(("green", "black"), start=900))
    assert model.tasks[-1] == ["black"]
    assert model.images_seen["red"] == 10


def check_further_images_change_answers_even_of_a_single_task(make: Make) -> None:
    """A model that knows one task only gets more images of it and learns from them."""
    model = make()
    model.learn(squares(FIRST))
    images = tensor_images(model, 5)
    before = model.method.predict(images).logits
    model.learn(squares(FIRST, start=800))
    assert len(model.tasks) == 1
    assert not torch.equal(model.method.predict(images).logits, before)


def check_gradients_reach_what_learns_and_nothing_else(make: Make) -> None:
    """Everything said to be trainable gets a gradient; the backbone and what earlier tasks froze do not move.

    A task that is not trained on (no epochs) has nothing trainable.
    """
    model = trained(make)
    method = model.method
    frozen = {name: p.detach().clone() for name, p in method.named_parameters() if not p.requires_grad}
    assert any(name.startswith("vit.") for name in frozen)
    assert bool(trainable_parameters(method)) == (method.epochs > 0)
    if method.epochs:
        labels = torch.tensor([3, 4, 5])
        torch.stack(list(method.loss(tensor_images(model, 3), labels).values())).sum().backward()
    for name, parameter in method.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert reached == parameter.requires_grad, name
    model.learn(squares(("white",)))
    after = dict(model.method.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items())


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
