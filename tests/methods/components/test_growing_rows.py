from __future__ import annotations

import torch

from caprompt.methods.components.growing_rows import GrowingRows, draw_orthonormal_rows


def make_rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_new_rows_are_trained_and_earlier_ones_frozen() -> None:
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


def test_append_from_newest_copies_the_newest_rows() -> None:
    """The first rows are the given ones; earlier rows must not change with their copies."""
    rows = GrowingRows(3)
    rows.append_from_newest(torch.ones(1, 3))
    rows.append_from_newest(torch.zeros(1, 3))
    rows.newest.data += 1
    assert rows().tolist() == [[1, 1, 1], [2, 2, 2]]


def test_rows_take_the_dtype_of_the_module() -> None:
    rows = GrowingRows(3).double()
    rows.append(torch.ones(1, 3))
    assert rows.newest.dtype == torch.float64


def test_orthonormal_rows_equal_gram_schmidt() -> None:
    """Random vectors minus projections on all rows before them, normalized; the sign is free."""
    earlier = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(1))).Q.T * 3  # orthogonal, of length 3
    expected = list(earlier)
    for drawn in torch.randn(3, 6, generator=make_rng()):
        row = drawn - sum(torch.dot(drawn, u) / torch.dot(u, u) * u for u in expected)
        expected.append(row / row.norm())
    rows = draw_orthonormal_rows(3, earlier, make_rng())
    signs = (rows * torch.stack(expected[2:])).sum(dim=1).sign().unsqueeze(1)
    torch.testing.assert_close(rows * signs, torch.stack(expected[2:]))


def test_rows_are_orthogonal_to_earlier_rows_that_are_not_orthogonal_themselves() -> None:
    earlier = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) + 1
    rows = draw_orthonormal_rows(5, earlier, make_rng())
    torch.testing.assert_close(rows @ rows.T, torch.eye(5))
    torch.testing.assert_close(rows @ earlier.T, torch.zeros(5, 4), rtol=0, atol=1e-5)


def test_in_a_full_space_rows_are_orthogonal_to_the_latest() -> None:
    """In four dimensions two new rows can be orthogonal only to the latest two of three."""
    earlier = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    rows = draw_orthonormal_rows(2, earlier, make_rng())
    torch.testing.assert_close(rows @ rows.T, torch.eye(2))
    torch.testing.assert_close(rows @ earlier[1:].T, torch.zeros(2, 2), rtol=0, atol=1e-5)


def test_more_rows_than_dimensions() -> None:
    rows = draw_orthonormal_rows(7, torch.empty(0, 3), make_rng())
    assert rows.shape == (7, 3)
    for part in rows.split(3):
        torch.testing.assert_close(part @ part.T, torch.eye(len(part)))
