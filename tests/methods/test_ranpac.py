from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, equal_tensors, quick_options, squares, tiny_vit
from sklearn.linear_model import Ridge
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.callbacks.events import Event, StepEnded
from caprompt.methods.components.ridge import STRENGTHS
from caprompt.methods.ranpac import CurrentTaskRidge, CurrentTaskRidgeHead, RanPAC, RanPACOptions


def cyclic_labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def random_images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def make_method(**options: object) -> RanPAC:
    return RanPAC(tiny_vit(), RanPACOptions(**{"projections": 50, "bottleneck": 4, **options}))  # type: ignore[arg-type]


def test_logits_are_ridge_regression_on_rectified_projections() -> None:
    method = make_method(adapt_first=False, scale=2.0)
    method.begin_task(3, torch.Generator().manual_seed(0))
    images, y = random_images(30), cyclic_labels(30)
    method.consolidate([(images[:20], y[:20]), (images[20:], y[20:])], torch.Generator().manual_seed(1))
    x = np.maximum(method.vit(images).double().numpy() @ method.head.projection.double().numpy(), 0)
    expected = Ridge(alpha=method.head.ridge.strength, fit_intercept=False).fit(x, np.eye(3)[y]).predict(x)
    torch.testing.assert_close(method.predict(images).logits, 2 * torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-3)
    assert method.head.projection.shape == (TINY.width, 50)
    assert 0.9 < float(method.head.projection.std()) < 1.1


def test_projection_is_drawn_from_the_saved_seed_and_not_saved() -> None:
    method, other, restored = make_method(), make_method(), make_method()
    method.begin_task(2, torch.Generator().manual_seed(0))
    other.begin_task(2, torch.Generator().manual_seed(1))
    assert not torch.equal(method.head.projection, other.head.projection)
    method.consolidate([(random_images(6), cyclic_labels(6, 2))], torch.Generator())
    state = method.state()
    assert not any("projection" in name for name in state)
    assert all(tensor.shape != method.head.projection.shape for tensor in state.values())
    restored.restore([2], state)
    assert torch.equal(restored.head.projection, method.head.projection)
    assert torch.equal(restored.predict(random_images(2)).logits, method.predict(random_images(2)).logits)


def test_gram_matrix_is_saved_only_after_the_first_images() -> None:
    method = make_method()
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.state()["head.ridge.gram"].numel() == 0
    method.consolidate([(random_images(6), cyclic_labels(6, 2))], torch.Generator())
    assert method.state()["head.ridge.gram"].shape == (25, 51)  # half of the symmetric matrix


def test_only_the_first_task_is_trained() -> None:
    method = make_method(epochs=7)
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.epochs == 7
    expected = torch.nn.functional.cross_entropy(method.proxy(method.vit(random_images(4))), torch.tensor([0, 1, 1, 0]))
    torch.testing.assert_close(method.loss(random_images(4), torch.tensor([0, 1, 1, 0]))["ce"], expected)
    trained = {name for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert trained == {"proxy.weight", "proxy.scale", "adapter.down", "adapter.down_bias", "adapter.up", "adapter.up_bias"}
    method.begin_task(3, torch.Generator().manual_seed(1))
    assert method.epochs == 0
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert len(method.proxy.weight) == 0
    assert make_method(adapt_first=False).epochs == 0


def random_pairs(count: int, classes: int, seed: int, signal: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return hidden features (count, 12) that depend on their class, and classes."""
    generator, labels = torch.Generator().manual_seed(seed), cyclic_labels(count, classes)
    return torch.randn(count, 12, generator=generator) + signal * torch.nn.functional.one_hot(labels, 12), labels


def test_strength_is_the_one_with_the_least_held_out_error_of_the_last_call() -> None:
    """Compare with a regression solved for every candidate on four fifths of the images of each call."""
    head, chosen = CurrentTaskRidgeHead(12), []
    head.grow(4, torch.Generator())
    for count, signal in ((40, 0.0), (40, 5.0)):
        hidden, labels = random_pairs(count, 4, seed=0, signal=signal)
        held_out, targets = count // 5, torch.eye(4)[labels]
        errors = []
        for strength in STRENGTHS:
            fitted = Ridge(alpha=strength, fit_intercept=False).fit(hidden[held_out:].double(), targets[held_out:].double())
            errors.append(((fitted.predict(hidden[:held_out].double()) - targets[:held_out].numpy()) ** 2).mean())
        head.observe(hidden, labels)
        head.update_errors(hidden, labels)
        assert head.strength == STRENGTHS[int(np.argmin(errors))]
        chosen.append(head.strength)
    assert chosen[0] != chosen[1], "the second call should not have the strength of the first"


def test_call_without_held_out_images_keeps_the_strength() -> None:
    head = CurrentTaskRidgeHead(12)
    head.grow(4, torch.Generator())
    hidden, labels = random_pairs(40, 4, 0)
    head.observe(hidden, labels)
    head.update_errors(hidden, labels)
    before = head.strength
    head.update_errors(hidden[:2], labels[:2])
    assert head.strength == before


def test_strength_is_at_least_the_rounding_error_of_the_sums() -> None:
    head = CurrentTaskRidgeHead(12)
    head.grow(4, torch.Generator())
    hidden, labels = random_pairs(40, 4, 0)
    head.observe(1e6 * hidden, labels)
    head.errors[3:] = 1.0  # 1e-8 is best
    assert head.strength > 1


def test_selection_of_the_strength_is_an_option() -> None:
    assert isinstance(make_method().head, CurrentTaskRidge)
    assert not isinstance(make_method(ridge_selection="all-tasks").head, CurrentTaskRidge)
    assert RanPACOptions.complete_saved({}) == {"ridge_selection": "all-tasks", "proxy_scale": 10.0, "exact_sums": False}


def test_regression_of_the_current_task_equals_that_of_all_tasks_but_for_its_strength() -> None:
    heads = [make_method(ridge_selection=kind, adapt_first=False) for kind in ("current-task", "all-tasks")]
    for method in heads:
        method.begin_task(3, torch.Generator().manual_seed(0))
        method.consolidate([(random_images(8), cyclic_labels(8)), (random_images(7, 1), cyclic_labels(7))], torch.Generator())
    assert torch.equal(heads[0].head.ridge.gram, heads[1].head.ridge.gram)
    assert torch.equal(heads[0].head.ridge.sums, heads[1].head.ridge.sums)
    torch.testing.assert_close(heads[0].head.ridge.errors, heads[1].head.ridge.errors)  # of a single call


def test_resumed_first_task_is_bit_identical(backbone: Path, tmp_path: Path) -> None:
    def make_model() -> ContinualClassifier:
        return ContinualClassifier("ranpac", backbone, **quick_options("ranpac"))  # type: ignore[arg-type]

    class StopError(Exception):
        pass

    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise StopError

    uninterrupted = make_model()
    uninterrupted.learn(squares(["red", "green"]))
    with pytest.raises(StopError):
        make_model().learn(squares(["red", "green"]), checkpoint_dir=tmp_path, callbacks=stop)
    resumed = make_model()
    resumed.learn(squares(["red", "green"]), checkpoint_dir=tmp_path, resume=True)
    assert equal_tensors(resumed.method.state(), uninterrupted.method.state())
    assert resumed.method.adapter.up.abs().max() > 0  # type: ignore[union-attr]
