"""Which blocks a regression reads: decided by images that are left out of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.methods.components.readout import compute_left_out_errors, select_num_blocks


def make_blocks(informative: int, num_images: int = 40) -> tuple[Tensor, Tensor]:
    """Class tokens of 4 blocks (n, 4, 8) in which only one of them, counted from the end, tells two classes apart."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(num_images) % 2
    blocks = 3 * torch.randn(num_images, 4, 8, generator=rng)
    blocks[:, -informative] /= 3
    blocks[:, -informative, 0] += 8 * labels - 4
    return blocks, labels


@pytest.mark.parametrize(("informative", "expected"), [(1, 1), (2, 2), (4, 4)])
def test_as_many_blocks_as_tell_the_classes_apart(informative: int, expected: int) -> None:
    blocks, labels = make_blocks(informative)
    assert select_num_blocks(blocks, labels, 0.1, [1, 2, 4]) == expected


def test_last_block_alone_where_images_cannot_tell() -> None:
    blocks, labels = make_blocks(informative=4)
    assert select_num_blocks(blocks, torch.zeros_like(labels), 0.1, [1, 2, 4]) == 1, "a single class"
    assert select_num_blocks(blocks[:5], torch.arange(5), 0.1, [1, 2, 4]) == 1, "a single image of each class"


def test_all_candidates_where_no_fewer_are_clearly_better() -> None:
    noise, labels = torch.randn(40, 4, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2
    assert select_num_blocks(noise, labels, 0.1, [1, 2, 4]) == 4


def test_errors_are_those_of_regressions_without_the_image() -> None:
    tokens, labels = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 3
    rng = torch.Generator().manual_seed(3)
    hidden = F.relu(tokens @ torch.randn(5, 200_000, dtype=torch.float64, generator=rng)) / 200_000**0.5
    targets = F.one_hot(labels).double()
    kernel = hidden @ hidden.T
    strength = 0.1 * kernel.diagonal().mean()
    expected = []
    for left_out in range(12):
        rest = [i for i in range(12) if i != left_out]
        system = kernel[rest][:, rest] + strength * torch.eye(11)
        predicted = kernel[left_out, rest] @ torch.linalg.solve(system, targets[rest])
        expected.append(predicted)
    outputs, wanted = torch.stack(expected) - torch.stack(expected).mean(dim=0), targets - targets.mean(dim=0)
    factor = torch.linalg.lstsq(outputs.reshape(-1, 1), wanted.reshape(-1, 1)).solution.clamp_min(0)
    errors = compute_left_out_errors(tokens @ tokens.T, labels, 0.1)
    expected_errors = (wanted - factor * outputs).square().sum(dim=1)
    torch.testing.assert_close(errors, expected_errors, rtol=0.05, atol=0.01)  # the kernel is that of infinitely many
