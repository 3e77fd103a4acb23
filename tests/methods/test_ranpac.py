from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, quick_options, same_tensors, squares, tiny_vit
from sklearn.linear_model import Ridge
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.callbacks.events import Event, StepEnded
from caprompt.methods.ranpac import RanPAC, RanPACOptions


def labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def made(**options: object) -> RanPAC:
    return RanPAC(tiny_vit(), RanPACOptions(**{"projections": 50, "bottleneck": 4, **options}))  # type: ignore[arg-type]


def test_features_are_projected_and_rectified_before_the_ridge() -> None:
    method = made(adapt_first=False, scale=2.0)
    method.begin_task(3, torch.Generator().manual_seed(0))
    pictures, y = images(30), labels(30)
    method.consolidate([(pictures[:20], y[:20]), (pictures[20:], y[20:])], torch.Generator().manual_seed(1))
    x = np.maximum(method.vit(pictures).double().numpy() @ method.head.projection.double().numpy(), 0)
    expected = Ridge(alpha=method.head.ridge.strength, fit_intercept=False).fit(x, np.eye(3)[y]).predict(x)
    torch.testing.assert_close(method.predict(pictures).logits, 2 * torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-3)
    assert method.head.projection.shape == (TINY.width, 50)
    assert 0.9 < float(method.head.projection.std()) < 1.1


def test_the_projection_follows_from_the_saved_seed_and_is_not_saved() -> None:
    method, other, restored = made(), made(), made()
    method.begin_task(2, torch.Generator().manual_seed(0))
    other.begin_task(2, torch.Generator().manual_seed(1))
    assert not torch.equal(method.head.projection, other.head.projection)
    method.consolidate([(images(6), labels(6, 2))], torch.Generator())
    state = method.state()
    assert not any("projection" in name for name in state)
    assert all(tensor.shape != method.head.projection.shape for tensor in state.values())
    restored.restore([2], state)
    assert torch.equal(restored.head.projection, method.head.projection)
    assert torch.equal(restored.predict(images(2)).logits, method.predict(images(2)).logits)


def test_the_large_sums_are_not_kept_before_there_are_any() -> None:
    method = made()
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.state()["head.ridge.gram"].numel() == 0
    method.consolidate([(images(6), labels(6, 2))], torch.Generator())
    assert method.state()["head.ridge.gram"].shape == (25, 51)  # half of it


def test_only_the_first_task_trains() -> None:
    method = made(epochs=7)
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.epochs == 7
    expected = torch.nn.functional.cross_entropy(method.proxy(method.vit(images(4))), torch.tensor([0, 1, 1, 0]))
    torch.testing.assert_close(method.loss(images(4), torch.tensor([0, 1, 1, 0]))["ce"], expected)
    learned = {name for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert learned == {"proxy.weight", "proxy.scale", "adapter.down", "adapter.down_bias", "adapter.up", "adapter.up_bias"}
    method.begin_task(3, torch.Generator().manual_seed(1))
    assert method.epochs == 0
    assert not any(parameter.requires_grad for parameter in method.parameters())
    assert len(method.proxy.weight) == 0
    assert made(adapt_first=False).epochs == 0


def test_a_stopped_first_session_goes_on_to_the_same_bits(backbone: Path, tmp_path: Path) -> None:
    def fresh() -> ContinualClassifier:
        return ContinualClassifier("ranpac", backbone, **quick_options("ranpac"))  # type: ignore[arg-type]

    class StopError(Exception):
        pass

    def stop(event: Event) -> None:
        if isinstance(event, StepEnded) and event.epoch == 1:
            raise StopError

    straight = fresh()
    straight.learn(squares(["red", "green"]))
    with pytest.raises(StopError):
        fresh().learn(squares(["red", "green"]), folder=tmp_path, listen=stop)
    resumed = fresh()
    resumed.learn(squares(["red", "green"]), folder=tmp_path, resume=True)
    assert same_tensors(resumed.method.state(), straight.method.state())
    assert resumed.method.adapter.up.abs().max() > 0  # type: ignore[union-attr]
