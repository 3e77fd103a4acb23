from __future__ import annotations

import torch
from torch import Tensor

from caprompt.methods.filter_bank import FilterBank, orthonormal_rows


def made(*counts: int) -> FilterBank:
    """Two layers, three heads, filters of 3 x 3, keys of 8."""
    bank = FilterBank(2, 3, 3, 8)
    for number, count in enumerate(counts):
        bank.grow(count, torch.Generator().manual_seed(number))
    return bank


def test_the_grouped_convolution_is_a_loop_over_filters() -> None:
    """Every element in plain sums: 4 rows of 3 heads x 5 from embeddings of 6 x 7."""
    bank = made(2, 1)
    embedding = torch.randn(2, 2, 3, 6, 7, generator=torch.Generator().manual_seed(9))
    weight, bias = torch.cat([bank.old_weight, bank.weight], dim=3), torch.cat([bank.old_bias, bank.bias], dim=3)
    expected = torch.zeros(2, 3, 2, 4, 15)
    for layer in range(2):
        for part in range(2):
            for head in range(3):
                for number in range(3):
                    for row in range(4):
                        for column in range(5):
                            window = embedding[layer, part, head, row : row + 3, column : column + 3]
                            value = (window * weight[layer, part, head, number]).sum() + bias[layer, part, head, number]
                            expected[layer, number, part, row, head * 5 + column] = value.detach()
    torch.testing.assert_close(bank(embedding), expected)


def test_growing_freezes_what_there_was() -> None:
    bank = made(2)
    weight, keys = bank.weight.detach().clone(), bank.keys.detach().clone()
    bank.grow(3, torch.Generator().manual_seed(5))
    assert torch.equal(bank.old_weight, weight)
    assert torch.equal(bank.all_keys()[:2], keys)
    assert {name: tuple(p.shape) for name, p in bank.named_parameters()} == {
        "weight": (2, 2, 3, 3, 3, 3),
        "bias": (2, 2, 3, 3),
        "keys": (3, 8),
    }


def unit_and_apart(rows: Tensor, old: Tensor) -> bool:
    together = rows @ torch.cat([old, rows]).T
    expected = torch.cat([torch.zeros(len(rows), len(old)), torch.eye(len(rows))], dim=1)
    return torch.allclose(together, expected, atol=1e-5)


def test_new_keys_are_at_right_angles_to_all_others() -> None:
    old = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))  # trained keys: neither unit nor orthogonal
    assert unit_and_apart(orthonormal_rows(old, 3, torch.Generator().manual_seed(1)), old)


def test_keys_without_room_are_still_of_length_one() -> None:
    old = torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    rows = orthonormal_rows(old, 3, torch.Generator().manual_seed(1))
    assert unit_and_apart(rows[:1], old)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(orthonormal_rows(old.repeat(2, 1), 2, torch.Generator()).norm(dim=1), torch.ones(2))
