from __future__ import annotations

import math

import pytest
import torch
from helpers import TINY, equal_tensors, make_caprompt, tiny_vit

from caprompt.callbacks.events import EpochEnded, Event, StepEnded
from caprompt.engine.trainer import build_optimizer, compute_learning_rate_factor, fit
from caprompt.engine.training_step import get_trainable_parameters
from caprompt.methods import build_method
from caprompt.methods.base import Batches
from caprompt.methods.options import Options
from caprompt.utils.optimizers import get_optimizer_state


def make_batches(epoch: int) -> Batches:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        labels = torch.tensor([0, 1, 0, 1])
        images = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=generator) + labels[:, None, None, None]
        yield images, labels


# -- fit -----------------------------------------------------------------------------------------------------------------------


def test_loss_decreases_and_is_reported_by_events() -> None:
    events: list[Event] = []
    fit(make_caprompt(epochs=8, learning_rate=0.02), make_batches, callback=events.append)
    steps = [event for event in events if isinstance(event, StepEnded)]
    epochs = [event for event in events if isinstance(event, EpochEnded)]
    assert len(steps) == 24
    assert [epoch.epoch for epoch in epochs] == list(range(8))
    assert epochs[-1].losses["ce"] < 0.7 * epochs[0].losses["ce"]
    assert epochs[0].images == 12
    mean = sum(float(step.losses["ce"]) for step in steps[:3]) / 3
    assert epochs[0].losses["ce"] == pytest.approx(mean, rel=1e-5)


def test_resuming_after_an_epoch_is_bit_equal() -> None:
    uninterrupted, stopped = make_caprompt(epochs=3), make_caprompt(epochs=3)
    fit(uninterrupted, make_batches)
    saved: dict[str, object] = {}

    class StopError(Exception):
        pass

    def stop(ended: EpochEnded, optimizer: torch.optim.Optimizer) -> None:
        if ended.epoch == 1:
            moments = {name: tensor.clone() for name, tensor in get_optimizer_state(optimizer).items()}
            saved.update(state={name: tensor.clone() for name, tensor in stopped.state().items()}, moments=moments)
            raise StopError

    with pytest.raises(StopError):
        fit(stopped, make_batches, save=stop)
    resumed = build_method("caprompt", tiny_vit(), {"length": 4, "epochs": 3})
    resumed.restore([2], saved["state"])  # type: ignore[arg-type]
    fit(resumed, make_batches, start=2, optimizer_tensors=saved["moments"])  # type: ignore[arg-type]
    assert equal_tensors(resumed.state(), uninterrupted.state())


def test_resuming_without_optimizer_state_is_not_bit_equal() -> None:
    """Shows that the test above can fail."""
    uninterrupted, other = make_caprompt(epochs=3), make_caprompt(epochs=3)
    fit(uninterrupted, make_batches)
    fit(other, lambda epoch: make_batches(epoch) if epoch < 2 else iter(()), start=0)
    fit(other, make_batches, start=2)
    assert not equal_tensors(other.state(), uninterrupted.state())


def test_gradient_norm_is_clipped() -> None:
    method = make_caprompt(clip=0.01, epochs=1)
    norms: list[float] = []

    def measure_norm(event: Event) -> None:
        if isinstance(event, StepEnded):
            gradients = [parameter.grad for parameter in get_trainable_parameters(method) if parameter.grad is not None]
            norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))

    fit(method, make_batches, callback=measure_norm)
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


def test_method_without_epochs_is_not_trained() -> None:
    """It may have no trainable parameter, and its batches are not loaded."""
    method = build_method("ncm", tiny_vit(), {})
    method.begin_task(2, torch.Generator())
    assert not get_trainable_parameters(method)
    events: list[Event] = []
    loaded_epochs: list[int] = []
    fit(method, lambda epoch: loaded_epochs.append(epoch) or make_batches(epoch), callback=events.append)  # type: ignore[func-returns-value]
    assert events == loaded_epochs == []


def test_proxy_head_has_the_learning_rate_of_the_head() -> None:
    method = build_method("ease", tiny_vit(), {"bottleneck": 4, "learning_rate": 0.01, "head_rate": 0.1})
    method.begin_task(2, torch.Generator().manual_seed(0))
    rest, head = build_optimizer(method).param_groups
    assert head["base"] == pytest.approx(0.001)
    assert {id(parameter) for parameter in head["params"]} == {id(parameter) for parameter in method.trained_head.parameters()}
    assert len(rest["params"]) == 4


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "quarter-cosine"])
def test_schedule_starts_at_one_and_never_increases(schedule: str) -> None:
    factors = [compute_learning_rate_factor(Options(schedule=schedule), epoch, 10) for epoch in range(10)]  # type: ignore[arg-type]
    assert factors[0] == 1
    assert factors == sorted(factors, reverse=True)
    assert (factors[-1] < 1) == (schedule != "constant")


@pytest.mark.parametrize("epochs", [2, 5, 20])
def test_quarter_cosine_is_the_schedule_of_coda_prompt(epochs: int) -> None:
    """cos(99 pi e / (200 (K - 1))) in epoch e of K."""
    factors = [compute_learning_rate_factor(Options(schedule="quarter-cosine"), epoch, epochs) for epoch in range(epochs)]
    expected = [math.cos(99 * math.pi * epoch / (200 * (epochs - 1))) for epoch in range(epochs)]
    assert factors == pytest.approx(expected)
    assert factors[-1] == pytest.approx(0.0157, abs=1e-4)


def test_quarter_cosine_of_a_single_epoch_is_one() -> None:
    assert compute_learning_rate_factor(Options(schedule="quarter-cosine"), 0, 1) == 1
