from __future__ import annotations

import pytest
import torch
from torch import Tensor

from caprompt.methods.inflora import ProtectedSubspaces, missing_directions


def spanned(*axes: int, width: int) -> Tensor:
    """The projector on some axes."""
    diagonal = torch.zeros(width, dtype=torch.float64)
    diagonal[list(axes)] = 1
    return diagonal.diag()


def diagonal(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).diag()


def random_moments(width: int, seed: int) -> Tensor:
    """G of inputs that have a few strong directions."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(200, width, generator=generator, dtype=torch.float64) * torch.logspace(0, -2, width, dtype=torch.float64)
    inputs = inputs @ torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    return inputs.T @ inputs


def held(projector: Tensor, moment: Tensor) -> float:
    """The share of the energy of G that a subspace holds."""
    return float((projector @ moment).square().sum() / moment.square().sum())


def test_just_enough_of_the_strongest_directions_are_protected() -> None:
    """Energies 16, 9, 4, 1, of 30: 25 / 30 = 0.83."""
    subspaces = ProtectedSubspaces(2, 4)
    moments = torch.stack([diagonal(1, 4, 2, 3), diagonal(4, 3, 2, 1)])
    subspaces.protect(moments, 0.8)
    torch.testing.assert_close(subspaces.projectors(), torch.stack([spanned(1, 3, width=4), spanned(0, 1, width=4)]))
    assert subspaces.complement.tolist() == [False, False]


def test_what_is_protected_already_counts() -> None:
    """Axis 0 is protected and holds 16 of 30; axis 1 is enough for 0.8, none is needed for half."""
    projector, moment = spanned(0, width=4), diagonal(4, 3, 2, 1)
    assert missing_directions(projector, moment, 0.5).shape[1] == 0
    torch.testing.assert_close(missing_directions(projector, moment, 0.8).abs(), torch.eye(4, dtype=torch.float64)[:, 1:2])


def test_beyond_half_of_the_width_the_complement_is_kept() -> None:
    subspaces = ProtectedSubspaces(1, 5)
    subspaces.protect(diagonal(5, 4, 3, 2, 1)[None], 0.95)  # energies 25, 16, 9, 4, 1 of 55
    assert subspaces.complement.tolist() == [True]
    torch.testing.assert_close(subspaces.projectors()[0], spanned(0, 1, 2, 3, width=5))
    assert (subspaces.basis.abs().sum(dim=1) > 0).sum() == 1
    subspaces.protect(diagonal(0, 0, 0, 0, 1)[None], 0.5)  # and now everything
    torch.testing.assert_close(subspaces.projectors()[0], torch.eye(5, dtype=torch.float64))


@pytest.mark.parametrize("width", [12, 13])
def test_any_number_of_tasks_agrees_with_a_basis_that_only_grows(width: int) -> None:
    """The plain way: columns appended one by one, never stored dually."""
    subspaces, columns = ProtectedSubspaces(1, width), torch.zeros(width, 0, dtype=torch.float64)
    duals = []
    for task in range(8):
        moment = random_moments(width, task)
        while held(columns @ columns.T, moment) < 0.97:
            rest = moment - columns @ (columns.T @ moment)
            columns = torch.cat([columns, torch.linalg.svd(rest).U[:, :1]], dim=1)
        subspaces.protect(moment[None], 0.97)
        torch.testing.assert_close(subspaces.projectors()[0], columns @ columns.T, rtol=0, atol=1e-5)
        duals.append(bool(subspaces.complement[0]))
    assert duals[0] is False
    assert duals[-1] is True


def test_free_directions_lie_outside_and_lead() -> None:
    subspaces = ProtectedSubspaces(1, 4)
    subspaces.protect(diagonal(1, 0, 0, 0)[None], 0.9)
    found = subspaces.free_directions(diagonal(9, 1, 3, 2)[None], 2)[0]
    torch.testing.assert_close(found.abs(), torch.eye(4, dtype=torch.float64)[[2, 3]])


def test_where_no_free_direction_is_left_there_is_none() -> None:
    subspaces = ProtectedSubspaces(1, 4)
    inputs = diagonal(1, 1, 1, 0)[None]
    subspaces.protect(inputs, 1.0)
    found = subspaces.free_directions(inputs, 3)[0]
    torch.testing.assert_close(found @ spanned(0, 1, 2, width=4), torch.zeros(3, 4, dtype=torch.float64))
