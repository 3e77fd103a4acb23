from __future__ import annotations

import torch

from caprompt.methods.convprompt import FilterBank


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
    weight, bias = bank.weight(), bank.bias()
    expected = torch.zeros(2, 3, 2, 4, 15)
    for layer in range(2):
        for part in range(2):
            for head in range(3):
                for number in range(3):
                    for row in range(4):
                        for column in range(5):
                            window = embedding[layer, part, head, row : row + 3, column : column + 3]
                            value = (window * weight[number, layer, part, head]).sum() + bias[number, layer, part, head]
                            expected[layer, number, part, row, head * 5 + column] = value.detach()
    torch.testing.assert_close(bank(embedding), expected)


def test_growing_freezes_what_there_was() -> None:
    bank = made(2)
    weight, keys = bank.weight.newest.detach().clone(), bank.keys.newest.detach().clone()
    bank.grow(3, torch.Generator().manual_seed(5))
    assert torch.equal(bank.weight.earlier, weight)
    assert torch.equal(bank.keys()[:2], keys)
    assert {name: tuple(p.shape) for name, p in bank.named_parameters()} == {
        "weight.newest": (3, 2, 2, 3, 3, 3),
        "bias.newest": (3, 2, 2, 3),
        "keys.newest": (3, 8),
    }


def test_new_keys_are_at_right_angles_to_all_others() -> None:
    bank = made(2)
    bank.keys.newest.data.normal_(generator=torch.Generator().manual_seed(0))  # trained keys: neither unit nor orthogonal
    bank.grow(3, torch.Generator().manual_seed(1))
    expected = torch.cat([torch.zeros(3, 2), torch.eye(3)], dim=1)
    torch.testing.assert_close(bank.keys.newest @ bank.keys().T, expected, rtol=0, atol=1e-5)


def test_filters_start_as_a_convolutions_do() -> None:
    bank = made(20)
    for rows in (bank.weight, bank.bias):
        assert 0.3 < float(rows.newest.detach().abs().max()) <= 1 / 3  # nine inputs each
