from __future__ import annotations

import torch

from caprompt.methods.keys import cosine, orthonormal_rows


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_cosine_of_every_pair() -> None:
    query, keys = torch.randn(3, 5, generator=chance()), torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    one_by_one = [[torch.dot(q, k) / q.norm() / k.norm() for k in keys] for q in query]
    torch.testing.assert_close(cosine(query, keys), torch.tensor(one_by_one))


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
