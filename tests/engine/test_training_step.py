from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import TINY, equal_tensors, make_caprompt, tiny_vit
from thread_group import ThreadGroup, run_in_threads
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from caprompt.engine.trainer import build_optimizer, fit
from caprompt.engine.training_step import (
    SharedTrainingStep,
    ThreadedTrainingStep,
    TrainingStep,
    get_trainable_parameters,
    make_step,
)
from caprompt.errors import InputError
from caprompt.methods import build_method
from caprompt.methods.base import Batches, Method
from caprompt.utils.communication import choose_share, use_communicator
from caprompt.utils.threads import use_threads

IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([4, 5, 4, 5])  # the classes of the third task
#: Options with which every term of the paper's loss is computed.
MIXTURE = {"training_prompt": "mixture", "training_head": "linear", "alpha": 5.0, "beta": 0.2, "modulation": 0.0}


# -- TrainingStep --------------------------------------------------------------------------------------------------------------


def test_step_applies_the_clipped_gradient_of_the_summed_losses() -> None:
    """Compared with plain SGD written out."""
    method = make_caprompt(3, optimizer="sgd", clip=0.05, learning_rate=0.5, **MIXTURE)
    reference = make_caprompt(3, clip=0.05, **MIXTURE)
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


def test_step_is_divided_among_threads_on_a_cpu_where_that_is_possible() -> None:
    own, released = make_caprompt(3), make_caprompt(3, classifier="aligned", protocol="released")
    assert type(make_step(own, build_optimizer(own))) is ThreadedTrainingStep
    assert type(make_step(released, build_optimizer(released))) is TrainingStep
    changing = build_method("moal", tiny_vit(), {})
    changing.begin_task(2, torch.Generator())
    assert type(make_step(changing, build_optimizer(changing))) is TrainingStep


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
        method = make_caprompt(3, depth, **options)
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
        method = make_caprompt(3, depth, **options)
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
    whole = make_caprompt(tasks=3, clip=0, optimizer="sgd", **options)
    losses = TrainingStep(whole, build_optimizer(whole))(IMAGES, LABELS)

    def train(group: ThreadGroup) -> tuple[Method, dict[str, Tensor]]:
        method = make_caprompt(tasks=3, clip=0, optimizer="sgd", **options)
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


# -- several threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threads", "count"), [(1, 11), (2, 11), (3, 11), (2, 1), (3, 2)])
def test_threads_train_as_one_does(threads: int, count: int) -> None:
    """With parts that differ in size, or fewer images than threads."""
    images = torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(count) % 2 + 4
    whole, divided = (make_caprompt(tasks=3, clip=0.05, optimizer="sgd", learning_rate=0.5, **MIXTURE) for _ in range(2))
    expected = TrainingStep(whole, build_optimizer(whole))(images, labels)
    step = ThreadedTrainingStep(divided, build_optimizer(divided))
    with use_threads(threads):
        losses = step(images, labels)
        assert torch.get_num_threads() == threads
    assert len(step.trained) == (0 if 1 in (threads, count) else len(get_trainable_parameters(divided)))
    torch.testing.assert_close(losses, expected)
    for own, other in zip(get_trainable_parameters(divided), get_trainable_parameters(whole), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_threads_train_with_the_same_bits_every_time() -> None:
    def train() -> dict[str, Tensor]:
        method = make_caprompt(epochs=3)
        with use_threads(2):
            fit(method, make_large_batches)
        return method.state()

    assert equal_tensors(train(), train())


def make_large_batches(epoch: int) -> Batches:
    generator = torch.Generator().manual_seed(epoch)
    yield torch.randn(16, 3, TINY.image_size, TINY.image_size, generator=generator), torch.arange(16) % 2
