from __future__ import annotations

import torch

from caprompt.methods.components.growing_rows import GrowingRows, orthonormal_rows


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(3)


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


def test_going_on_copies_what_was_learned() -> None:
    """The first task starts as it is told; the earlier rows must not move with a new task's that start from them."""
    rows = GrowingRows(3)
    rows.go_on(torch.ones(1, 3))
    rows.go_on(torch.zeros(1, 3))
    rows.newest.data += 1
    assert rows().tolist() == [[1, 1, 1], [2, 2, 2]]


def test_rows_take_the_kind_of_numbers_of_the_module() -> None:
    rows = GrowingRows(3).double()
    rows.append(torch.ones(1, 3))
    assert rows.newest.dtype == torch.float64


def test_new_rows_are_those_of_gram_schmidt() -> None:
    """Drawn vectors, less their projections on all rows before them, at unit length; the sign is free."""
    earlier = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(1))).Q.T * 3  # orthogonal, of length 3
    expected = list(earlier)
    for drawn in torch.randn(3, 6, generator=chance()):
        row = drawn - sum(torch.dot(drawn, u) / torch.dot(u, u) * u for u in expected)
        expected.append(row / row.norm())
    rows = orthonormal_rows(3, earlier, chance())
    signs = (rows * torch.stack(expected[2:])).sum(dim=1).sign().unsqueeze(1)
    torch.testing.assert_close(rows * signs, torch.stack(expected[2:]))


def test_new_rows_are_orthogonal_to_earlier_ones_that_are_not_orthogonal_themselves() -> None:
    earlier = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) + 1
    rows = orthonormal_rows(5, earlier, chance())
    torch.testing.assert_close(rows @ rows.T, torch.eye(5))
    torch.testing.assert_close(rows @ earlier.T, torch.zeros(5, 4), rtol=0, atol=1e-5)


def test_a_full_space_keeps_the_latest_apart() -> None:
    """Four dimensions hold four orthogonal rows: of three earlier ones, two new rows avoid the latest two."""
    earlier = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    rows = orthonormal_rows(2, earlier, chance())
    torch.testing.assert_close(rows @ rows.T, torch.eye(2))
    torch.testing.assert_close(rows @ earlier[1:].T, torch.zeros(2, 2), rtol=0, atol=1e-5)


def test_more_rows_than_dimensions() -> None:
    rows = orthonormal_rows(7, torch.empty(0, 3), chance())
    assert rows.shape == (7, 3)
    for part in rows.split(3):
        torch.testing.assert_close(part @ part.T, torch.eye(len(part)))
