from __future__ import annotations

import torch
from helpers import TINY, tiny_vit

from caprompt.methods import build
from caprompt.methods.base import Method
from caprompt.optimizing import for_training
from caprompt.stepping import Step, make_step


def method(**options: object) -> Method:
    made = build("caprompt", tiny_vit(), {"length": 4, **options})
    for _ in range(3):
        made.begin_task(2, torch.Generator().manual_seed(0))
    return made


IMAGES = torch.randn(4, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([4, 5, 4, 5])


def test_a_step_follows_the_clipped_gradient_of_the_summed_losses() -> None:
    """Against the same step spelled out with plain SGD."""
    made, plain = method(optimizer="sgd", clip=0.05, learning_rate=0.5), method(clip=0.05)
    losses = Step(made, for_training(made))(IMAGES, LABELS)
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
    assert isinstance(make_step(made, for_training(made)), Step)
