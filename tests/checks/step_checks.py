"""What must hold of every method's training steps and answers, so that a GPU can record them once and replay them.

A recorded step repeats the same kernels on the same tensors. So it must not look at values, which only the GPU knows, must not
bring numbers from the host, and must change what it changes in place. All of that shows without a GPU: on PyTorch's `meta` device
tensors have shapes but no values, and looking at one is an error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from helpers import TINY
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from caprompt import ContinualClassifier
from caprompt.engine.trainer import TrainingStep, build_optimizer, make_step
from caprompt.methods.base import Method

Make = Callable[..., ContinualClassifier]

#: Options that change what a step or an answer does, tried where a method has them.
SWITCHES: list[dict[str, object]] = [
    {},
    {"cycles": 3},
    {"first_pass": "query"},
    {"classifier": "aligned"},
    {"aggregation": False},
    {"alpha": 0.0},
    {"beta": 0.0},
    {"replay": "covariance"},
    {"orthogonality": 0.1},
    {"margin": 0.2},
    {"masked": True},
    {"masked": False},
    {"raw_weight": 1.0},
    {"adapt_first": False},
    {"general_layers": 0},
]


class OnlyOn(TorchDispatchMode):
    """Within it, every tensor that an operation makes must be on one kind of device."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            assert not isinstance(tensor, Tensor) or tensor.device.type == self.kind, f"{func} makes a tensor on {tensor.device}"
        return made


def begun(make: Make, tasks: Sequence[int], **settings: object) -> Method:
    """A method with room for some tasks, which has learned nothing."""
    method = make(**settings).method
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def in_training(make: Make, **settings: object) -> Method | None:
    """A method in its third task, or in its first if only that is trained on; none if nothing ever is."""
    for tasks in ((2, 1, 3), (2,)):
        method = begun(make, tasks, **settings)
        if method.epochs:
            return method
    return None


def batch(method: Method, number: int) -> tuple[Tensor, Tensor]:
    """Three images of the newest task's classes."""
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(3, 3, TINY.image_size, TINY.image_size, generator=generator)
    labels = torch.randint(method.num_known_classes, method.num_classes, (3,), generator=generator)
    return images.to(method.device), labels.to(method.device)


def check_steps_and_answers_never_look_at_values(make: Make) -> None:
    """Nor do they bring numbers from the host; where a method says that they may not be replayed, it need not be so."""
    known = make().method.options.model_dump()
    for chosen in SWITCHES:
        if not chosen.keys() <= known.keys():
            continue
        for tasks in ((2,), (2, 1, 3)):
            method = begun(make, tasks, **chosen)
            images, labels = batch(method, 0)
            method.to("meta")
            with OnlyOn("meta"):
                if method.can_capture_predict:
                    method.predict(images.to("meta"))
                if method.epochs and method.can_capture_step:
                    torch.stack(list(method.loss(images.to("meta"), labels.to("meta")).values())).sum().backward()


def check_steps_change_things_in_place(make: Make) -> None:
    """After a step every parameter and buffer is the tensor it was, at the same place, and nothing else has been noted down."""
    method = in_training(make)
    if method is None or not method.can_capture_step:
        return
    step = TrainingStep(method, build_optimizer(method))
    step(*batch(method, 0))
    before = dict(places(method))
    step(*batch(method, 1))
    method.predict(batch(method, 2)[0])
    assert dict(places(method)) == before


def places(method: Method) -> Iterator[tuple[str, object]]:
    """Where each tensor is, and what each module holds beside tensors and modules."""
    for name, tensor in [*method.named_parameters(), *method.named_buffers()]:
        yield name, (id(tensor), tensor.data_ptr())
    for name, module in method.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_"):
                assert not isinstance(value, (Tensor, nn.Module)), f"{name}.{key} would be missing from what is saved"
                yield f"{name}.{key}", repr(value)


def check_memory_stays_flat_across_steps(make: Make) -> None:
    """Ten steps leave as many tensors alive, and as many bytes in them, as three do."""
    method = in_training(make)
    if method is None:
        return
    step = TrainingStep(method, build_optimizer(method))
    alive = []
    for number in range(10):
        step(*batch(method, number))
        if number in (2, 9):
            gc.collect()
            # by their very type: compilers in the same process leave pretended tensors behind, which have no bytes
            tensors = [held for held in gc.get_objects() if type(held) in (Tensor, nn.Parameter)]
            alive.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))
            del tensors
    assert alive[0] == alive[1]


def check_replayed_steps_train_as_plain_ones_do(make: Make) -> None:
    """On a GPU: the same losses and parameters from recorded steps as from steps that are computed one by one."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    plain, replayed = (in_training(make, precision="fp32", optimizer="sgd") for _ in range(2))
    if plain is None or replayed is None:
        return
    steps = TrainingStep(plain, build_optimizer(plain)), make_step(replayed, build_optimizer(replayed))
    for number in range(7):
        one, two = (step(*batch(plain, number)) for step in steps)
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(replayed.get_parameter(name), parameter, rtol=1e-2, atol=1e-3)


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
