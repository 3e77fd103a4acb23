"""Checks of training steps and predictions, so that a GPU can capture them once as a CUDA graph and replay them.

A captured step repeats the same kernels on the same tensors. It must not read values, which only the GPU knows, must not copy
values from the host, and must update tensors in place. All of that can be seen without a GPU: on PyTorch's `meta` device tensors
have shapes but no values, and reading one is an error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from caprompt.engine.trainer import build_optimizer
from caprompt.engine.training_step import ThreadedTrainingStep, TrainingStep, make_step
from caprompt.methods.base import Method
from caprompt.testing.model_behavior import ModelFactory
from caprompt.utils.threads import use_threads

__all__: list[str] = []


class _OnlyOn(TorchDispatchMode):
    """A context in which every tensor that an operation returns must be on one type of device."""

    def __init__(self, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.device_type = device_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            is_allowed = not isinstance(tensor, Tensor) or tensor.device.type == self.device_type
            assert is_allowed, f"{func} returns a tensor on {tensor.device}"
        return result


def check_steps_and_predictions_read_no_values(make: ModelFactory) -> None:
    """Steps and predictions neither read values nor copy them from the host; what a method declares uncapturable is exempt."""
    for variant in ({}, *make().method.check_variants):
        for task_sizes in ((2,), (2, 1, 3)):
            method = _begin_tasks(make, task_sizes, **variant)
            images, labels = _make_batch(method, 0)
            method.to("meta")
            with _OnlyOn("meta"):
                if method.can_capture_predict:
                    method.predict(images.to("meta"))
                if method.epochs and method.can_capture_step:
                    torch.stack(list(method.loss(images.to("meta"), labels.to("meta")).values())).sum().backward()


def check_steps_update_in_place(make: ModelFactory) -> None:
    """After a step every parameter and buffer is the same tensor at the same address, and no other state has changed."""
    method = _begin_training(make)
    if method is None or not method.can_capture_step:
        return
    step = TrainingStep(method, build_optimizer(method))
    step(*_make_batch(method, 0))
    before = dict(_addresses(method))
    step(*_make_batch(method, 1))
    method.predict(_make_batch(method, 2)[0])
    assert dict(_addresses(method)) == before


def check_memory_is_constant_across_steps(make: ModelFactory) -> None:
    """Ten steps leave as many tensors alive, and as many bytes in them, as three do."""
    method = _begin_training(make)
    if method is None:
        return
    step = TrainingStep(method, build_optimizer(method))
    alive = []
    for number in range(10):
        step(*_make_batch(method, number))
        if number in (2, 9):
            gc.collect()
            # By exact type: a compiler in the same process leaves fake tensors behind, which have no storage.
            tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
            alive.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))
            del tensors
    assert alive[0] == alive[1], f"tensors and bytes after 3 and 10 steps: {alive}"


def check_threads_train_as_one_does(make: ModelFactory) -> None:
    """On a CPU, a step that threads divide gives the losses and parameters of the whole one, where a method allows that."""
    for variant in ({}, *make().method.check_variants):
        whole, divided = (_begin_training(make, **variant, optimizer="sgd") for _ in range(2))
        if whole is None or divided is None or not whole.can_train_in_threads or whole.explain_indivisible() is not None:
            continue
        batch = _make_batch(whole, 0, size=11)
        expected = TrainingStep(whole, build_optimizer(whole))(*batch)
        with use_threads(2):
            losses = ThreadedTrainingStep(divided, build_optimizer(divided))(*batch)
        torch.testing.assert_close(losses, expected)
        for name, parameter in whole.named_parameters():
            torch.testing.assert_close(divided.get_parameter(name), parameter, rtol=1e-3, atol=1e-5)


def check_captured_steps_equal_eager_steps(make: ModelFactory) -> None:
    """On a GPU, captured steps give the same losses and parameters as eager ones."""
    eager, captured = (_begin_training(make, device="cuda", precision="fp32", optimizer="sgd") for _ in range(2))
    if eager is None or captured is None:
        return
    steps = TrainingStep(eager, build_optimizer(eager)), make_step(captured, build_optimizer(captured))
    for number in range(7):
        one, two = (step(*_make_batch(eager, number)) for step in steps)
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(captured.get_parameter(name), parameter, rtol=1e-2, atol=1e-3)


def _begin_tasks(make: ModelFactory, task_sizes: Sequence[int], **options: object) -> Method:
    """Return a method with room for some tasks, which has learned nothing."""
    method = make(**options).method
    for number, size in enumerate(task_sizes):
        method.begin_task(size, torch.Generator().manual_seed(number))
    return method


def _begin_training(make: ModelFactory, **options: object) -> Method | None:
    """Return a method in its third task, or in its first if only that is trained; None if none is."""
    for task_sizes in ((2, 1, 3), (2,)):
        method = _begin_tasks(make, task_sizes, **options)
        if method.epochs:
            return method
    return None


def _make_batch(method: Method, number: int, size: int = 3) -> tuple[Tensor, Tensor]:
    """Return so many random images (B, 3, S, S) with labels (B,) of the newest task's classes."""
    generator, side = torch.Generator().manual_seed(number), method.vit.config.image_size
    images = torch.randn(size, 3, side, side, generator=generator)
    labels = torch.randint(method.num_known_classes, method.num_classes, (size,), generator=generator)
    return images.to(method.device), labels.to(method.device)


def _addresses(method: Method) -> Iterator[tuple[str, object]]:
    """Yield the address of each tensor, and the other attributes of each module."""
    for name, tensor in [*method.named_parameters(), *method.named_buffers()]:
        yield name, (id(tensor), tensor.data_ptr())
    for name, module in method.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_"):
                assert not isinstance(value, (Tensor, nn.Module)), f"{name}.{key} would be missing from the saved state"
                yield f"{name}.{key}", repr(value)
