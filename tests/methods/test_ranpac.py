from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import TINY, quick_options, same_tensors, squares, tiny_vit
from sklearn.linear_model import Ridge
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.events import Event, StepTaken
from caprompt.methods.ranpac import STRENGTHS, RanPAC, RanPACOptions, RidgeHead, held_out_errors


def hidden(count: int, width: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).relu()


def labels(count: int, classes: int = 3) -> Tensor:
    return torch.arange(count) % classes


def head(width: int = 12, classes: int = 3) -> RidgeHead:
    made = RidgeHead(width)
    made.grow(classes, torch.Generator())
    return made


def prefer(made: RidgeHead, strength: float) -> RidgeHead:
    """Make the head take this strength."""
    made.errors.fill_(1)
    made.errors[STRENGTHS.index(strength)] = 0
    return made


def sklearn_ridge(x: Tensor, y: Tensor, strength: float) -> Ridge:
    return Ridge(alpha=strength, fit_intercept=False, solver="svd").fit(x.numpy(), y.numpy())


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(seed))


def made(**options: object) -> RanPAC:
    return RanPAC(tiny_vit(), RanPACOptions(**{"projections": 50, "bottleneck": 4, **options}))  # type: ignore[arg-type]


@pytest.mark.parametrize("strength", [0.1, 10.0, 1000.0])
def test_weights_are_scikit_learns_ridge(strength: float) -> None:
    x, y = hidden(40), labels(40)
    ridge = prefer(head(), strength)
    ridge.observe(x.float(), y)
    ridge.solve()
    expected = sklearn_ridge(x.float().double(), torch.nn.functional.one_hot(y).double(), strength)
    np.testing.assert_allclose(ridge.weight.numpy(), expected.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [30, 9], ids=["more images than features", "fewer"])
def test_one_decomposition_gives_scikit_learns_error_at_every_strength(count: int) -> None:
    x, y = hidden(count), torch.nn.functional.one_hot(labels(count)).double()
    held, held_y = hidden(7, seed=1), torch.nn.functional.one_hot(labels(7)).double()
    found = held_out_errors(x, y, held, held_y)
    assert len(found) == len(STRENGTHS) == 17
    for strength, error in zip(STRENGTHS, found.tolist(), strict=True):
        predicted = sklearn_ridge(x, y, strength).predict(held.numpy())
        assert error == pytest.approx(float(((predicted - held_y.numpy()) ** 2).sum()), rel=1e-5)


def test_sums_grow_with_classes_and_calls_as_if_all_had_come_at_once() -> None:
    x = hidden(30).float()
    y = torch.cat([labels(20, 2), labels(10, 3)])
    at_once = prefer(head(classes=3), 1.0)
    at_once.observe(x, y)
    at_once.solve()
    grown = prefer(head(classes=2), 1.0)
    grown.observe(x[:20], y[:20])
    grown.solve()
    before = grown.weight.clone()
    grown.grow(1, torch.Generator())
    assert torch.equal(grown.weight[:2], before)
    assert not grown.weight[2].any()
    grown.observe(x[20:], y[20:])
    grown.solve()
    torch.testing.assert_close(grown.gram, at_once.gram)
    torch.testing.assert_close(grown.weight, at_once.weight, rtol=1e-4, atol=1e-6)


def test_strength_is_the_best_over_all_calls() -> None:
    """Targets of pure chance ask for much strength, clean ones for little; a small call does not overrule a large one."""
    x, chance = hidden(300, 60), torch.randint(3, (300,), generator=torch.Generator().manual_seed(5))
    clean = (x @ (hidden(3, 60, seed=3) - 0.5).T).argmax(dim=1)
    large, small, both = head(60), head(60), head(60)
    for ridge, targets in ((large, chance), (both, chance), (small, clean[:40]), (both, clean[:40])):
        ridge.observe(x[: len(targets)].float(), targets)
        ridge.weigh_strengths(x[: len(targets)].float(), targets)
    torch.testing.assert_close(both.errors, large.errors + small.errors)
    assert small.strength < large.strength
    assert both.strength == large.strength == STRENGTHS[int(large.errors.argmin())]


def test_one_image_has_nothing_to_be_held_against() -> None:
    ridge = head()
    ridge.weigh_strengths(hidden(1).float(), labels(1))
    assert not ridge.errors.any()


def test_strength_does_not_drown_in_rounding() -> None:
    """A singular G: ten images, a hundred features. The least strength would leave nothing but noise."""
    ridge = prefer(head(100), 1e-8)
    x, y = 30 * hidden(10, 100).float(), labels(10)
    ridge.observe(x, y)
    ridge.solve()
    assert 1e-8 < ridge.strength < 1
    torch.testing.assert_close(ridge(x), torch.nn.functional.one_hot(y).float(), rtol=0, atol=0.01)


def test_features_are_projected_and_rectified_before_the_ridge() -> None:
    method = made(adapt_first=False, scale=2.0)
    method.begin_task(3, torch.Generator().manual_seed(0))
    pictures, y = images(30), labels(30)
    method.consolidate([(pictures[:20], y[:20]), (pictures[20:], y[20:])], torch.Generator().manual_seed(1))
    x = np.maximum(method.vit(pictures).double().numpy() @ method.projection.double().numpy(), 0)
    expected = Ridge(alpha=method.head.strength, fit_intercept=False).fit(x, np.eye(3)[y]).predict(x)
    torch.testing.assert_close(method.answer(pictures).logits, 2 * torch.from_numpy(expected).float(), rtol=1e-3, atol=1e-3)
    assert method.projection.shape == (TINY.width, 50)
    assert 0.9 < float(method.projection.std()) < 1.1


def test_the_projection_follows_from_the_saved_seed_and_is_not_saved() -> None:
    method, other, restored = made(), made(), made()
    method.begin_task(2, torch.Generator().manual_seed(0))
    other.begin_task(2, torch.Generator().manual_seed(1))
    assert not torch.equal(method.projection, other.projection)
    method.consolidate([(images(6), labels(6, 2))], torch.Generator())
    state = method.state()
    assert "projection" not in state
    assert all(tensor.shape != method.projection.shape for tensor in state.values())
    restored.restore([2], state)
    assert torch.equal(restored.projection, method.projection)
    assert torch.equal(restored.answer(images(2)).logits, method.answer(images(2)).logits)


def test_the_large_sums_are_not_kept_before_there_are_any() -> None:
    method = made()
    method.begin_task(2, torch.Generator().manual_seed(0))
    assert method.state()["head.gram"].numel() == 0
    method.consolidate([(images(6), labels(6, 2))], torch.Generator())
    assert method.state()["head.gram"].shape == (50, 50)


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
        if isinstance(event, StepTaken) and event.epoch == 1:
            raise StopError

    straight = fresh()
    straight.learn(squares(["red", "green"]))
    with pytest.raises(StopError):
        fresh().learn(squares(["red", "green"]), folder=tmp_path, listen=stop)
    resumed = fresh()
    resumed.learn(squares(["red", "green"]), folder=tmp_path, resume=True)
    assert same_tensors(resumed.method.state(), straight.method.state())
    assert resumed.method.adapter.up.abs().max() > 0  # type: ignore[union-attr]
