from __future__ import annotations

import pytest
import torch
from helpers import TINY, equal_tensors, tiny_vit

from caprompt.callbacks.events import EpochEnded, Event, StepEnded
from caprompt.engine.trainer import build_optimizer, fit, learning_rate_factor, trainable_parameters
from caprompt.methods import build_method
from caprompt.methods.base import Batches, Method
from caprompt.methods.options import Options
from caprompt.utils.optimizers import get_optimizer_state


def method(**options: object) -> Method:
    made = build_method("caprompt", tiny_vit(), {"length": 4, "epochs": 3, **options})
    made.begin_task(2, torch.Generator().manual_seed(0))
    return made


def batches(epoch: int) -> Batches:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        labels = torch.tensor([0, 1, 0, 1])
        images = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=generator) + labels[:, None, None, None]
        yield images, labels


def test_loss_falls_and_events_tell_of_it() -> None:
    events: list[Event] = []
    fit(method(epochs=8, learning_rate=0.02), batches, callback=events.append)
    steps = [event for event in events if isinstance(event, StepEnded)]
    epochs = [event for event in events if isinstance(event, EpochEnded)]
    assert len(steps) == 24
    assert [epoch.epoch for epoch in epochs] == list(range(8))
    assert epochs[-1].losses["ce"] < 0.7 * epochs[0].losses["ce"]
    assert epochs[0].images == 12
    mean = sum(float(step.losses["ce"]) for step in steps[:3]) / 3
    assert epochs[0].losses["ce"] == pytest.approx(mean, rel=1e-5)


def test_continuing_after_an_epoch_gives_the_same_bits() -> None:
    straight, stopped = method(), method()
    fit(straight, batches)
    kept: dict[str, object] = {}

    class StopError(Exception):
        pass

    def stop(ended: EpochEnded, optimizer: torch.optim.Optimizer) -> None:
        if ended.epoch == 1:
            moments = {name: tensor.clone() for name, tensor in get_optimizer_state(optimizer).items()}
            kept.update(state={name: tensor.clone() for name, tensor in stopped.state().items()}, moments=moments)
            raise StopError

    with pytest.raises(StopError):
        fit(stopped, batches, save=stop)
    resumed = build_method("caprompt", tiny_vit(), {"length": 4, "epochs": 3})
    resumed.restore([2], kept["state"])  # type: ignore[arg-type]
    fit(resumed, batches, start=2, optimizer_tensors=kept["moments"])  # type: ignore[arg-type]
    assert equal_tensors(resumed.state(), straight.state())


def test_without_the_moments_the_bits_would_differ() -> None:
    """The test above can fail: a fresh optimiser in the middle is another training."""
    straight, other = method(), method()
    fit(straight, batches)
    fit(other, lambda epoch: batches(epoch) if epoch < 2 else iter(()), start=0)
    fit(other, batches, start=2)
    assert not equal_tensors(other.state(), straight.state())


def test_clipping_bounds_the_gradient() -> None:
    made = method(clip=0.01, epochs=1)
    norms: list[float] = []

    def measure(event: Event) -> None:
        if isinstance(event, StepEnded):
            gradients = [parameter.grad for parameter in trainable_parameters(made) if parameter.grad is not None]
            norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))

    fit(made, batches, callback=measure)
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


def test_a_task_without_epochs_is_not_trained() -> None:
    """There may be nothing to optimise, and nobody asks for the batches."""
    made = build_method("ncm", tiny_vit(), {})
    made.begin_task(2, torch.Generator())
    assert not trainable_parameters(made)
    events: list[Event] = []
    asked: list[int] = []
    fit(made, lambda epoch: asked.append(epoch) or batches(epoch), callback=events.append)  # type: ignore[func-returns-value]
    assert events == asked == []


def test_a_proxy_is_trained_at_the_heads_rate() -> None:
    made = build_method("ease", tiny_vit(), {"bottleneck": 4, "learning_rate": 0.01, "head_rate": 0.1})
    made.begin_task(2, torch.Generator().manual_seed(0))
    rest, head = build_optimizer(made).param_groups
    assert head["base"] == pytest.approx(0.001)
    assert {id(parameter) for parameter in head["params"]} == {id(parameter) for parameter in made.trained_head.parameters()}
    assert len(rest["params"]) == 4


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_schedules_start_full_and_never_rise(schedule: str) -> None:
    factors = [learning_rate_factor(Options(schedule=schedule), epoch, 10) for epoch in range(10)]  # type: ignore[arg-type]
    assert factors[0] == 1
    assert factors == sorted(factors, reverse=True)
    assert (factors[-1] < 1) == (schedule != "constant")
