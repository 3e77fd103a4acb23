"""Checks of what a model does: batch invariance, growth, seeds, saving, resuming, further images, gradients.

Each check takes a function that makes a new model of the method under test.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from caprompt.callbacks.events import Consolidating, Event, StepEnded
from caprompt.classifier import ContinualClassifier
from caprompt.data.sources import read_images
from caprompt.engine.inference import Predictor
from caprompt.engine.inputs import InputPipeline
from caprompt.engine.training_step import get_trainable_parameters
from caprompt.testing.tiny import square, squares
from caprompt.utils.threads import use_threads

__all__ = ["ModelFactory", "equal_tensors"]

ModelFactory = Callable[..., ContinualClassifier]  # options -> a model that has learned nothing

FIRST, SECOND, THIRD = ("red", "green"), ("blue",), ("yellow", "purple", "cyan")
ROUNDING = 1e-5
RIDGE_ROUNDING = 3e-5  # the logits of a ridge classifier are larger by the option `ridge_scale`


class _StopError(Exception):
    """Raised by a callback to stop a call."""


def equal_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two states have the same names and bit-equal tensors."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def check_batch_invariance(make: ModelFactory) -> None:
    """Batches of 1, 7 and 64 and a shuffled order give the same logits and task weights, for every variant of the options."""
    model = _train(make)
    _assert_batch_invariant(model)
    for variant in model.method.check_variants:
        if variant.keys() <= model.method.options.at_prediction:
            with model.override_options(variant):
                _assert_batch_invariant(model)
        else:
            _assert_batch_invariant(_train(make, **variant))


def check_same_bits_in_every_batch(make: ModelFactory) -> None:
    """On a GPU, an image has the same bits alone, in batches of any size and in another order, in bfloat16 and in float32."""
    model = _train(make, device="cuda")
    images, shuffled = _image_batch(model, 70), torch.from_numpy(np.random.default_rng(0).permutation(70))
    for precision in ("bf16", "fp32"):
        with model.override_options({"precision": precision}):
            alone = _predict_in_batches(model, images, 1)
            for size in (7, 64):
                for order in (torch.arange(70), shuffled):
                    batched = _predict_in_batches(model, images[order.to(images.device)], size)
                    same = all(torch.equal(one[order.to(one.device)], many) for one, many in zip(alone, batched, strict=True))
                    assert same, f"in {precision}, outputs of an image in a batch of {size} differ from those alone"


def check_bfloat16_backbone(make: ModelFactory) -> None:
    """With the backbone in bfloat16 a method learns and predicts; its state is float32, and predictions are close to float32's."""
    model = _train(make, precision="bf16")
    assert all(tensor.dtype != torch.bfloat16 for tensor in model.method.state().values()), "the state should be float32"
    images, _ = squares((*FIRST, *SECOND, *THIRD), start=400)
    half, exact = model.predict(images), model.predict(images, precision="fp32")
    assert np.mean([a.label == b.label for a, b in zip(half, exact, strict=True)]) > 0.8
    assert np.mean([abs(a.score - b.score) for a, b in zip(half, exact, strict=True)]) < 0.1


def check_growth_with_unequal_tasks(make: ModelFactory) -> None:
    """With tasks of 2, 1 and 3 classes, logits have a column per class, and task weights one per task and a sum of one."""
    model = _train(make)
    assert model.tasks == [["green", "red"], ["blue"], ["cyan", "purple", "yellow"]]
    output = model.method.predict(_image_batch(model, 5))
    assert output.logits.shape == (5, 6)
    assert output.task_weights.shape == (5, 3)
    torch.testing.assert_close(output.task_weights.sum(dim=1).cpu(), torch.ones(5))


def check_learns(make: ModelFactory) -> None:
    """A single easy task is learned well above chance."""
    model = make(epochs=10, learning_rate=0.01)
    model.learn(squares(("red", "blue", "yellow"), each=10))
    assert model.evaluate(squares(("red", "blue", "yellow"), start=300)).accuracy > 60


def check_same_seed_gives_same_model(make: ModelFactory) -> None:
    """Everything random is derived from the seed; a method that draws nothing is the same for every seed."""
    one, same, other = _train(make), _train(make), _train(make, seed=1)
    assert equal_tensors(one.method.state(), same.method.state()), "the same seed should give the same model"
    assert equal_tensors(one.method.state(), other.method.state()) != _draws_random_numbers(make)
    assert _draws_random_numbers(make) or not one.method.epochs, "trained parameters should have a random initialization"


def check_saving_between_calls_changes_nothing(make: ModelFactory) -> None:
    """A model that is saved and loaded after every call is bit-equal to one that is not."""
    uninterrupted = _train(make)
    with tempfile.TemporaryDirectory() as folder:
        model = make()
        for task in (FIRST, SECOND, THIRD):
            model.learn(squares(task))
            model.save(Path(folder))
            model = ContinualClassifier.load(folder, device=str(uninterrupted.device))
        is_same = equal_tensors(model.method.state(), uninterrupted.method.state())
        assert is_same, "a model that was saved and loaded between calls differs from one that was not"
        assert model.classes == uninterrupted.classes
        assert model.predict_one(square("blue", 9)) == uninterrupted.predict_one(square("blue", 9))


def check_resumed_equals_uninterrupted(make: ModelFactory) -> None:
    """A call stopped in its second epoch, or before consolidation if it has none, is resumed to a bit-equal model."""
    uninterrupted = make()
    for task in (FIRST, THIRD):
        uninterrupted.learn(squares(task))

    def stop(event: Event) -> None:
        if (isinstance(event, StepEnded) and event.epoch == 1) or isinstance(event, Consolidating):
            raise _StopError

    with tempfile.TemporaryDirectory() as folder:
        model = make()
        model.learn(squares(FIRST), checkpoint_dir=folder)
        before = {name: tensor.clone() for name, tensor in model.method.state().items()}
        try:
            model.learn(squares(THIRD), checkpoint_dir=folder, callbacks=stop)
        except _StopError:
            assert equal_tensors(model.method.state(), before), "a call that fails should leave the model as it was"
        else:
            raise AssertionError("the call should have been stopped")
        model = ContinualClassifier.load(folder, device=str(uninterrupted.device))
        model.learn(squares(THIRD), checkpoint_dir=folder, resume=True)
        is_same = equal_tensors(model.method.state(), uninterrupted.method.state())
        assert is_same, "a model whose call was resumed differs from one that was not stopped"


def check_one_image_equals_many(make: ModelFactory) -> None:
    """`predict_one` gives what `predict` gives for the same image among others, on a CPU bit by bit and from several threads."""
    model = _train(make)
    images, _ = squares(FIRST, start=700)
    with use_threads(3):
        together = model.predict(images)
    for one, many in zip((model.predict_one(image) for image in images), together, strict=True):
        assert one.label == many.label
        assert abs(one.score - many.score) < 1e-5
        assert one == many or model.device.type != "cpu", "a prediction on a CPU differs in its last bits"


def check_further_images_of_known_classes(make: ModelFactory) -> None:
    """More images of old classes come alone or with new classes; no class is doubled, and the model changes."""
    model = _train(make)
    before = {name: tensor.clone() for name, tensor in model.method.state().items()}
    model.learn(squares(("red", "blue"), start=800))
    assert model.tasks == [["green", "red"], ["blue"], ["cyan", "purple", "yellow"]]
    assert not equal_tensors(model.method.state(), before), "further images should change the model"
    model.learn(squares(("green", "black"), start=900))
    assert model.tasks[-1] == ["black"]
    assert model.images_seen["red"] == 10


def check_further_images_of_a_single_task(make: ModelFactory) -> None:
    """A model that knows one task only gets more images of it and learns from them."""
    model = make()
    model.learn(squares(FIRST))
    images = _image_batch(model, 5)
    before = model.method.predict(images).logits
    model.learn(squares(FIRST, start=800))
    assert len(model.tasks) == 1
    assert not torch.equal(model.method.predict(images).logits, before), "further images should change the logits"


def check_gradients_reach_trained_parameters_only(make: ModelFactory) -> None:
    """Every trainable parameter gets a gradient; the backbone and what earlier tasks froze do not change.

    A task that is not trained on (no epochs) has nothing trainable.
    """
    model = _train(make)
    method = model.method
    frozen = {name: parameter.detach().clone() for name, parameter in method.named_parameters() if not parameter.requires_grad}
    assert any(name.startswith("vit.") for name in frozen), "the backbone should be frozen"
    assert bool(get_trainable_parameters(method)) == (method.epochs > 0)
    if method.epochs:
        labels = torch.tensor([3, 4, 5], device=method.device)
        torch.stack(list(method.loss(_image_batch(model, 3), labels).values())).sum().backward()
    for name, parameter in method.named_parameters():
        has_gradient = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert has_gradient == parameter.requires_grad, name
    model.learn(squares(("white",)))
    after = dict(model.method.named_parameters())
    assert all(torch.equal(after[name], value) for name, value in frozen.items()), "frozen parameters should not change"


def _train(make: ModelFactory, **options: object) -> ContinualClassifier:
    """Return a model that has learned three tasks."""
    model = make(**options)
    for task in (FIRST, SECOND, THIRD):
        model.learn(squares(task))
    return model


def _image_batch(model: ContinualClassifier, count: int) -> Tensor:
    """Return images (count, 3, S, S) as the model's backbone expects them."""
    colors = [*FIRST, *SECOND, *THIRD]
    images = [square(colors[number % len(colors)], 500 + number) for number in range(count)]
    pipeline = InputPipeline(model.backbone, model.device)
    return torch.cat(list(pipeline.eval_images(read_images(images), model.method.input_options)))


def _assert_batch_invariant(model: ContinualClassifier) -> None:
    images = _image_batch(model, 70)
    alone = [model.method.predict(image[None]) for image in images]
    logits, weights = (torch.cat([getattr(output, name) for output in alone]) for name in ("logits", "task_weights"))
    assert logits.std(dim=0).max() > 1e-3, "logits of images that are predicted one by one should differ between images"
    rounding = RIDGE_ROUNDING if hasattr(model.method.options, "ridge_scale") else ROUNDING
    shuffled = torch.from_numpy(np.random.default_rng(0).permutation(70))
    for size in (7, 64):
        for order in (torch.arange(70), shuffled):
            outputs = [model.method.predict(images[part]) for part in order.split(size)]
            where = f"of the same image differ between a batch of 1 and one of {size}"
            batched = torch.cat([output.logits for output in outputs])
            assert torch.allclose(batched, logits[order], rtol=1e-6, atol=rounding), f"logits {where}"
            batched = torch.cat([output.task_weights for output in outputs])
            assert torch.allclose(batched, weights[order], rtol=0, atol=1e-5), f"task weights {where}"


def _predict_in_batches(model: ContinualClassifier, images: Tensor, size: int) -> list[Tensor]:
    """Return logits, (N, C), and task weights, (N, T), of images that are predicted in batches of one size."""
    predictor = Predictor(model.method, size)
    outputs = [predictor(part) for part in images.split(size)]
    return [torch.cat([getattr(output, name) for output in outputs]) for name in ("logits", "task_weights")]


def _draws_random_numbers(make: ModelFactory) -> bool:
    """Return whether the method uses the generator that a task begins with."""
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    make().method.begin_task(2, generator)
    return not torch.equal(generator.get_state(), before)
