"""Recording needs a GPU; where there is none, these tests skip and say so."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine.trainer import TrainingStep, build_optimizer
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.utils.cuda_graphs import CapturedFunction, capture
from caprompt.utils.optimizers import set_learning_rates

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def test_on_a_cpu_a_function_stays_itself() -> None:
    assert capture(torch.sin, torch.device("cpu")) is torch.sin


def method(recompute: bool = False) -> Method:
    made = build_method("caprompt", tiny_vit(), {"length": 4, "precision": "fp32"}).cuda()
    made.vit.recompute = recompute
    for number in range(3):
        made.begin_task(2, torch.Generator().manual_seed(number))
    return made


def batch(number: int, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(size, 3, TINY.image_size, TINY.image_size, generator=generator)
    return images.cuda(), torch.randint(4, 6, (size,), generator=generator).cuda()


@on_a_gpu
@pytest.mark.parametrize("recompute", [False, True])
def test_replayed_steps_train_as_plain_ones_do(recompute: bool) -> None:
    """Eight steps, one of them of another size, the rate changed on the way."""
    plain, replayed = method(), method(recompute)
    optimizers = build_optimizer(plain), build_optimizer(replayed)
    steps = TrainingStep(plain, optimizers[0]), CapturedFunction(TrainingStep(replayed, optimizers[1]))
    for number in range(8):
        images, labels = batch(number, size=3 if number == 6 else 6)
        for optimizer in optimizers:
            set_learning_rates(optimizer, 1 / (1 + number))
        one, two = (step(images, labels) for step in steps)
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert steps[1].graph is not None
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(replayed.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


@on_a_gpu
def test_a_replayed_step_launches_one_graph_and_waits_for_nothing() -> None:
    from torch.profiler import ProfilerActivity, profile

    made = method()
    step = CapturedFunction(TrainingStep(made, build_optimizer(made)))
    for number in range(6):
        step(*batch(number))
    images, labels = batch(9)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step(images, labels)
    calls = {entry.key: entry.count for entry in trace.key_averages() if entry.key.startswith("cuda")}
    assert calls.get("cudaGraphLaunch") == 1
    assert not any("Synchronize" in name for name in calls if name != "cudaDeviceSynchronize")
    assert calls.get("cudaLaunchKernel", 0) <= 2, "only the copies of the batch come beside the graph"


@on_a_gpu
def test_the_shape_of_the_first_call_is_recorded_whatever_comes_between() -> None:
    double = CapturedFunction(lambda x: 2 * x)
    for size in (6, 3, 6, 3, 6, 3, 6, 6):
        given = torch.randn(size, device="cuda")
        assert torch.equal(double(given), 2 * given)
    assert double.graph is not None
    assert [own.shape for own in double.inputs] == [(6,)]
