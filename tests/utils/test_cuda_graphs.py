"""CUDA-graph capture; without a GPU these tests are skipped."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import TrainingStep
from caprompt.methods import build_method
from caprompt.methods.base import Method
from caprompt.utils.cuda_graphs import CapturedFunction, capture
from caprompt.utils.optimizers import set_learning_rates

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def test_capture_returns_the_function_itself_on_a_cpu() -> None:
    assert capture(torch.sin, torch.device("cpu")) is torch.sin


def make_method(recompute: bool = False) -> Method:
    method = build_method("caprompt", tiny_vit(), {"length": 4, "precision": "fp32"}).cuda()
    method.vit.recompute = recompute
    for number in range(3):
        method.begin_task(2, torch.Generator().manual_seed(number))
    return method


def make_batch(number: int, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(size, 3, TINY.image_size, TINY.image_size, generator=generator)
    return images.cuda(), torch.randint(4, 6, (size,), generator=generator).cuda()


@needs_gpu
@pytest.mark.parametrize("recompute", [False, True])
def test_replayed_steps_train_like_eager_ones(recompute: bool) -> None:
    """Eight steps, one with another batch size, with a learning rate that changes."""
    eager, replayed = make_method(), make_method(recompute)
    optimizers = build_optimizer(eager), build_optimizer(replayed)
    steps = TrainingStep(eager, optimizers[0]), CapturedFunction(TrainingStep(replayed, optimizers[1]))
    for number in range(8):
        images, labels = make_batch(number, size=3 if number == 6 else 6)
        for optimizer in optimizers:
            set_learning_rates(optimizer, 1 / (1 + number))
        expected, losses = (step(images, labels) for step in steps)
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    assert steps[1].graph is not None
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(replayed.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


@needs_gpu
def test_result_of_the_warm_up_call_outlives_the_capture() -> None:
    """A capture begins by writing into new memory, while the stream that reads the first result is still busy."""
    doubled = CapturedFunction(lambda x: 2 * x)
    ones = torch.ones(3, device="cuda")
    result = doubled(ones)
    torch.cuda._sleep(10**8)
    copied = result.clone()
    del result  # its memory may be used by the next call
    doubled(ones)
    assert doubled.graph is not None
    assert copied.tolist() == [2.0, 2.0, 2.0]


@needs_gpu
def test_replayed_step_launches_one_graph_and_does_not_synchronize() -> None:
    from torch.profiler import ProfilerActivity, profile

    method = make_method()
    step = CapturedFunction(TrainingStep(method, build_optimizer(method)))
    for number in range(6):
        step(*make_batch(number))
    images, labels = make_batch(9)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step(images, labels)
    calls = {entry.key: entry.count for entry in trace.key_averages() if entry.key.startswith("cuda")}
    assert calls.get("cudaGraphLaunch") == 1
    assert not any("Synchronize" in name for name in calls if name != "cudaDeviceSynchronize")
    assert calls.get("cudaLaunchKernel", 0) <= 2, "only copies of the batch may be launched outside the graph"


@needs_gpu
def test_the_shape_of_the_first_call_is_captured_despite_other_shapes_in_between() -> None:
    double = CapturedFunction(lambda x: 2 * x)
    for size in (6, 3, 6, 3, 6, 3, 6, 6):
        x = torch.randn(size, device="cuda")
        assert torch.equal(double(x), 2 * x)
    assert double.graph is not None
    assert [tensor.shape for tensor in double.inputs] == [(6,)]
