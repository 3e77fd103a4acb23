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
from caprompt.methods.ranpac import RanPAC, RanPACOptions


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
