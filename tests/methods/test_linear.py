from __future__ import annotations

import torch
import torch.nn.functional as F
from helpers import TINY, tiny_vit

from caprompt.engine.training_step import get_trainable_parameters
from caprompt.methods.linear import Linear
from caprompt.methods.templates import BaselineOptions

IMAGES = torch.randn(6, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(0))


def make_method(**options: bool) -> Linear:
    method = Linear(tiny_vit(), BaselineOptions(**options))
    for number, classes in enumerate((2, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def test_head_reads_frozen_features_and_nothing_else_is_trained() -> None:
    method = make_method()
    expected = tiny_vit()(IMAGES) @ method.head.weight.T + method.head.bias
    torch.testing.assert_close(method.predict(IMAGES).logits, expected.detach())
    assert sum(parameter.numel() for parameter in get_trainable_parameters(method)) == 5 * (TINY.width + 1)


def test_old_rows_get_no_gradient_when_masked() -> None:
    labels = torch.tensor([2, 3, 4, 2, 3, 4])
    for masked, expected in ((True, False), (False, True)):
        method = make_method() if masked else make_method(masked=False)
        method.loss(IMAGES, labels)["ce"].backward()
        gradient = method.head.weight.grad
        assert gradient is not None
        assert bool(gradient[:2].abs().max() > 0) == expected


def test_head_gradient_is_that_of_softmax_regression() -> None:
    """The gradient of the bias is the mean of (probability - target)."""
    method, labels = make_method(masked=False), torch.tensor([0, 1, 2, 3, 4, 0])
    method.loss(IMAGES, labels)["ce"].backward()
    with torch.no_grad():
        expected = (method.logits(IMAGES).softmax(dim=1) - F.one_hot(labels, 5)).mean(dim=0)
    torch.testing.assert_close(method.head.bias.grad, expected)
