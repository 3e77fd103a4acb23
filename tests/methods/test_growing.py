from __future__ import annotations

import torch

from caprompt.methods.growing import GrowingRows


def test_new_rows_learn_and_earlier_ones_are_frozen() -> None:
    rows = GrowingRows(2, 3)
    assert rows().shape == (0, 2, 3)
    first, second = torch.randn(1, 2, 3), torch.randn(4, 2, 3)
    rows.append(first)
    assert len(rows.earlier) == 0
    rows.append(second)
    assert torch.equal(rows(), torch.cat([first, second]))
    assert torch.equal(rows.earlier, first)
    (rows() ** 2).sum().backward()
    torch.testing.assert_close(rows.newest.grad, 2 * second)
    assert [name for name, _ in rows.named_parameters()] == ["newest"]


def test_appending_what_was_learned_copies_it() -> None:
    """The earlier rows must not move with a new task's that start from them."""
    rows = GrowingRows(3)
    rows.append(torch.ones(1, 3))
    rows.append(rows.newest.detach())
    rows.newest.data += 1
    assert rows().tolist() == [[1, 1, 1], [2, 2, 2]]


def test_rows_take_the_kind_of_numbers_of_the_module() -> None:
    rows = GrowingRows(3).double()
    rows.append(torch.ones(1, 3))
    assert rows.newest.dtype == torch.float64
