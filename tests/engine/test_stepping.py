from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from helpers import TINY, tiny_vit
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from caprompt.engine.trainer import TrainingStep, build_optimizer, make_step
from caprompt.methods import build_method
from caprompt.methods.base import Method


def method(**options: object) -> Method:
    made = build_method("caprompt", tiny_vit(), {"length": 4, **options})
    for _ in range(3):
        made.begin_task(2, torch.Generator().manual_seed(0))
    return made


IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([4, 5, 4, 5])


def test_a_step_follows_the_clipped_gradient_of_the_summed_losses() -> None:
    """Against the same step spelled out with plain SGD."""
    made, plain = method(optimizer="sgd", clip=0.05, learning_rate=0.5), method(clip=0.05)
    losses = TrainingStep(made, build_optimizer(made))(IMAGES, LABELS)
    assert set(losses) == {"ce", "concave", "linear"}
    assert not any(loss.requires_grad for loss in losses.values())

    total = sum(plain.loss(IMAGES, LABELS).values())
    names = [name for name, parameter in plain.named_parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total, [plain.get_parameter(name) for name in names])  # type: ignore[arg-type]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert norm > 0.05, "the clipping should have something to do"
    for name, gradient in zip(names, gradients, strict=True):
        expected = plain.get_parameter(name) - 0.5 * gradient * 0.05 / norm
        torch.testing.assert_close(made.get_parameter(name), expected, rtol=1e-4, atol=1e-6)


def test_on_a_cpu_the_step_is_the_plain_one() -> None:
    made = method()
    assert isinstance(make_step(made, build_optimizer(made)), TrainingStep)


# What would slow a step down or let it keep more, by counting on the path of a CPU, which shares all but a few kernels with that
# of a GPU: the difference between two depths is what a block costs.

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


class Kernels(TorchDispatchMode):
    """Counts every operation that is more than another look at the same numbers."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.partition(".")[0]
        self.count += name not in VIEWS and not name.startswith("_record_function")
        return function(*args, **(kwargs or {}))


def deep(depth: int) -> Method:
    made = build_method("caprompt", tiny_vit(config=replace(TINY, depth=depth)), {"length": 4})
    for _ in range(3):
        made.begin_task(2, torch.Generator().manual_seed(0))
    return made


def test_how_many_kernels_a_step_launches() -> None:
    """Three passes forward (one of two prompts an image) and one back."""
    counts = []
    for depth in (2, 3):
        made = deep(depth)
        step = TrainingStep(made, build_optimizer(made))
        step(IMAGES, LABELS)  # the optimiser's moments are made in the first step
        with Kernels() as kernels:
            step(IMAGES, LABELS)
        counts.append(kernels.count)
    each = counts[1] - counts[0]
    assert each <= 49, "a block has become more work"
    assert counts[0] - 2 * each <= 165, "what is around the blocks has become more work"


def test_how_much_a_step_keeps_for_its_gradient() -> None:
    """Per token of the two passes with gradient: queries, keys, values, what attention gives, two norms' and the GELU's input."""
    kept = []
    for depth in (2, 3):
        made = deep(depth)
        own = {tensor.untyped_storage().data_ptr() for tensor in (*made.parameters(), *made.buffers())}
        found: dict[int, int] = {}

        def note(tensor: Tensor, own: set[int] = own, found: dict[int, int] = found) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            losses = made.loss(IMAGES, LABELS)
        kept.append(sum(found.values()))
        assert losses["ce"].requires_grad
    tokens, width = 2 * len(IMAGES) * 17, 4 * TINY.width  # bytes of one row of float32
    hidden = TINY.mlp_width / TINY.width
    assert (kept[1] - kept[0]) / tokens / width <= 8.8 + hidden, "a block keeps more"
