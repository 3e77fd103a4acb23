from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import TINY, equal_tensors, tiny_vit
from thread_group import ThreadGroup, run_in_threads
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from caprompt.callbacks.events import EpochEnded, Event, StepEnded
from caprompt.engine.trainer import (
    SharedTrainingStep,
    TrainingStep,
    build_optimizer,
    compute_learning_rate_factor,
    fit,
    get_trainable_parameters,
    make_step,
)
from caprompt.errors import InputError
from caprompt.methods import build_method
from caprompt.methods.base import Batches, Method
from caprompt.methods.options import Options
from caprompt.utils.communication import choose_share, use_communicator
from caprompt.utils.optimizers import get_optimizer_state

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([4, 5, 4, 5])  # the classes of the third task
#: Options with which every term of the paper's loss is computed.
MIXTURE = {"training_prompt": "mixture", "training_head": "linear", "alpha": 5.0, "beta": 0.2, "modulation": 0.0}


def make_method(tasks: int = 1, depth: int = TINY.depth, **options: object) -> Method:
    """Return a method in its last task; each task has two classes."""
    method = build_method("caprompt", tiny_vit(config=replace(TINY, depth=depth)), {"length": 4, **options})
    for _ in range(tasks):
        method.begin_task(2, torch.Generator().manual_seed(0))
    return method


def make_batches(epoch: int) -> Batches:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        labels = torch.tensor([0, 1, 0, 1])
        images = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=generator) + labels[:, None, None, None]
        yield images, labels


# -- fit -----------------------------------------------------------------------------------------------------------------------


def test_loss_decreases_and_is_reported_by_events() -> None:
    events: list[Event] = []
    fit(make_method(epochs=8, learning_rate=0.02), make_batches, callback=events.append)
    steps = [event for event in events if isinstance(event, StepEnded)]
    epochs = [event for event in events if isinstance(event, EpochEnded)]
    assert len(steps) == 24
    assert [epoch.epoch for epoch in epochs] == list(range(8))
    assert epochs[-1].losses["ce"] < 0.7 * epochs[0].losses["ce"]
    assert epochs[0].images == 12
    mean = sum(float(step.losses["ce"]) for step in steps[:3]) / 3
    assert epochs[0].losses["ce"] == pytest.approx(mean, rel=1e-5)


def test_resuming_after_an_epoch_is_bit_equal() -> None:
    uninterrupted, stopped = make_method(epochs=3), make_method(epochs=3)
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
    uninterrupted, other = make_method(epochs=3), make_method(epochs=3)
    fit(uninterrupted, make_batches)
    fit(other, lambda epoch: make_batches(epoch) if epoch < 2 else iter(()), start=0)
    fit(other, make_batches, start=2)
    assert not equal_tensors(other.state(), uninterrupted.state())


def test_gradient_norm_is_clipped() -> None:
    method = make_method(clip=0.01, epochs=1)
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


# -- TrainingStep --------------------------------------------------------------------------------------------------------------


def test_step_applies_the_clipped_gradient_of_the_summed_losses() -> None:
    """Compared with plain SGD written out."""
    method = make_method(3, optimizer="sgd", clip=0.05, learning_rate=0.5, **MIXTURE)
    reference = make_method(3, clip=0.05, **MIXTURE)
    losses = TrainingStep(method, build_optimizer(method))(IMAGES, LABELS)
    assert set(losses) == {"ce", "concave", "linear"}
    assert not any(loss.requires_grad for loss in losses.values())

    total = sum(reference.loss(IMAGES, LABELS).values())
    names = [name for name, parameter in reference.named_parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total, [reference.get_parameter(name) for name in names])  # type: ignore[arg-type]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert norm > 0.05, "the gradient should be clipped"
    for name, gradient in zip(names, gradients, strict=True):
        expected = reference.get_parameter(name) - 0.5 * gradient * 0.05 / norm
        torch.testing.assert_close(method.get_parameter(name), expected, rtol=1e-4, atol=1e-6)


def test_step_is_not_captured_on_a_cpu() -> None:
    method = make_method(3)
    assert isinstance(make_step(method, build_optimizer(method)), TrainingStep)


# Cost of a step: kernels launched and bytes saved for backward. Both are counted on a CPU, whose path shares all but a few kernels
# with that of a GPU. The difference between two depths is the cost of a block.

VIEWS = frozenset(
    [
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "expand",
        "lift_fresh",
        "new_empty",
        "permute",
        "promote_types",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)


class KernelCounter(TorchDispatchMode):
    """Counts the operations that are not views."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.partition(".")[0]
        self.count += name not in VIEWS and not name.startswith("_record_function")
        return function(*args, **(kwargs or {}))


@contextmanager
def record_saved_bytes(method: Method) -> Iterator[dict[int, int]]:
    """Yield the bytes of each storage that autograd saves, by address, without the method's own tensors."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*method.parameters(), *method.buffers())}
    saved_bytes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        yield saved_bytes


def count_kernels(**options: object) -> tuple[int, int]:
    """Return the kernels that a step of the third task launches per block and outside the blocks."""
    counts = []
    for depth in (2, 3):
        method = make_method(3, depth, **options)
        step = TrainingStep(method, build_optimizer(method))
        step(IMAGES, LABELS)  # the first step allocates the optimizer's moments
        with KernelCounter() as counter:
            step(IMAGES, LABELS)
        counts.append(counter.count)
    per_block = counts[1] - counts[0]
    return per_block, counts[0] - 2 * per_block


def count_saved_rows(**options: object) -> float:
    """Return the memory that a block saves for backward per image token, in rows of the width."""
    totals = []
    for depth in (2, 3):
        method = make_method(3, depth, **options)
        with record_saved_bytes(method) as saved_bytes:
            losses = method.loss(IMAGES, LABELS)
        totals.append(sum(saved_bytes.values()))
        assert losses["ce"].requires_grad
    return (totals[1] - totals[0]) / (len(IMAGES) * 17) / (4 * TINY.width)  # float32


def test_number_of_kernels_per_step() -> None:
    """One forward and one backward pass, with the task's own prompt, its scales and its shifts."""
    per_block, elsewhere = count_kernels()
    assert per_block <= 59, "a block launches more kernels than before"
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)  # whose own functions launch a few more
    assert elsewhere <= (110 if is_old else 100), "the parts outside the blocks launch more kernels than before"


def test_number_of_kernels_per_step_of_the_paper() -> None:
    """Three forward passes (one with two prompts per image) and one backward pass."""
    per_block, elsewhere = count_kernels(**MIXTURE)
    assert per_block <= 49, "a block launches more kernels than before"
    assert elsewhere <= 165, "the parts outside the blocks launch more kernels than before"


def test_memory_saved_for_backward_per_block() -> None:
    """In one pass; the scales also need what they multiply: the inputs and the outputs of attention and MLP."""
    hidden = TINY.mlp_width / TINY.width
    assert count_saved_rows() <= 13 + hidden, "a block saves more for backward than before"


def test_memory_saved_for_backward_per_block_by_the_paper() -> None:
    """In each of two passes: queries, keys, values, attention output, inputs of two norms and of the GELU."""
    hidden = TINY.mlp_width / TINY.width
    assert count_saved_rows(**MIXTURE) <= 2 * (8.8 + hidden), "a block saves more for backward than before"


# -- several processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, MIXTURE], ids=["own prompt", "mixture"])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_gradients_of_shares_are_those_of_the_whole_batch(size: int, options: dict[str, Any]) -> None:
    """Four images: three processes have unequal shares, and of six each has all of them."""
    whole = make_method(tasks=3, clip=0, optimizer="sgd", **options)
    losses = TrainingStep(whole, build_optimizer(whole))(IMAGES, LABELS)

    def train(group: ThreadGroup) -> tuple[Method, dict[str, Tensor]]:
        method = make_method(tasks=3, clip=0, optimizer="sgd", **options)
        own = choose_share(len(LABELS), group)
        return method, SharedTrainingStep(method, build_optimizer(method), group)(IMAGES[own], LABELS[own])

    for method, shared_losses in run_in_threads(size, train):
        assert shared_losses.keys() == losses.keys()
        for name, loss in losses.items():
            torch.testing.assert_close(shared_losses[name], loss, rtol=1e-5, atol=1e-6)
        for own, expected in zip(get_trainable_parameters(method), get_trainable_parameters(whole), strict=True):
            assert own.grad is not None
            assert expected.grad is not None
            largest = float(expected.grad.abs().max())
            torch.testing.assert_close(own.grad, expected.grad, rtol=0, atol=1e-6 * max(1.0, largest))
            torch.testing.assert_close(own, expected)


@pytest.mark.parametrize(("name", "reason"), [("cprompt", "random prompt"), ("hide-prompt", "contrastive"), ("mos", "contrastive")])
def test_methods_whose_images_depend_on_each_other_are_refused(name: str, reason: str) -> None:
    method = build_method(name, tiny_vit(), {})
    method.begin_task(2, torch.Generator())

    def prepare(group: ThreadGroup) -> None:
        with use_communicator(group), pytest.raises(InputError, match=f"'{name}' cannot be trained by 2 processes: .*{reason}"):
            make_step(method, build_optimizer(method))

    (first, _) = run_in_threads(2, lambda group: group)
    prepare(first)
