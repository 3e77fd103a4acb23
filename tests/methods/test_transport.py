from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from caprompt.errors import OptionError
from caprompt.methods.evoprompt import alignment, exact_plan, matching_plan, require


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_matching_undoes_a_shuffle_and_does_not_mind_scale() -> None:
    reference, order = random(7, 4, seed=0), torch.randperm(7, generator=torch.Generator().manual_seed(1))
    scale = torch.linspace(0.5, 3, 7).unsqueeze(1)
    shuffled = (scale * reference)[order]
    plan = alignment(shuffled, reference, "matching")
    torch.testing.assert_close(plan.T @ shuffled, scale * reference)


def test_the_cost_is_the_squared_distance_of_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, reference = random(3, 4, seed=2), random(3, 4, seed=3)
    seen: list[Tensor] = []
    monkeypatch.setattr("caprompt.methods.evoprompt.matching_plan", lambda cost: seen.append(cost) or torch.eye(3))
    alignment(rows, reference, "matching")
    for i in range(3):
        for j in range(3):
            expected = (rows[i] / rows[i].norm() - reference[j] / reference[j].norm()).square().sum()
            assert float(seen[0][i, j]) == pytest.approx(float(expected), abs=1e-6)


def test_equal_masses_make_the_exact_plan_a_matching() -> None:
    pytest.importorskip("ot")
    cost = random(12, 12, seed=4).double().square()
    torch.testing.assert_close(12 * exact_plan(cost, torch.ones(12), torch.ones(12)), matching_plan(cost))


def test_exact_plan_is_the_cheapest_of_all() -> None:
    """Against the same linear programme, written out and solved by SciPy."""
    pytest.importorskip("ot")
    cost, mass, target = random(5, 5, seed=5).double().square(), random(5, seed=6).abs(), random(5, seed=7).abs()
    plan = exact_plan(cost, mass, target).numpy()
    moved = np.concatenate(
        [mass.double().numpy() / mass.double().sum().item(), target.double().numpy() / target.double().sum().item()]
    )
    sums = np.concatenate([np.kron(np.eye(5), np.ones(5)), np.kron(np.ones(5), np.eye(5))])  # of rows, of columns
    best = linprog(cost.numpy().ravel(), A_eq=sums, b_eq=moved).fun
    np.testing.assert_allclose(sums @ plan.ravel(), moved, atol=1e-9)
    assert float((plan * cost.numpy()).sum()) == pytest.approx(best, abs=1e-9)


def test_exact_alignment_weighs_neurons_by_their_norms_and_scales_columns() -> None:
    pytest.importorskip("ot")
    rows, reference, mass = random(6, 4, seed=8), random(6, 4, seed=9), random(6, seed=10).abs()
    directions = [part.double() / part.double().norm(dim=1, keepdim=True) for part in (rows, reference)]
    cost = torch.cdist(*directions).square()
    for given, expected_mass in ((None, rows.abs().sum(dim=1)), (mass, mass)):
        plan = exact_plan(cost, expected_mass, reference.abs().sum(dim=1))
        torch.testing.assert_close(alignment(rows, reference, "exact", mass=given), (plan / plan.sum(dim=0)).float())


def test_a_dead_neuron_is_no_trouble() -> None:
    rows, reference = random(4, 3, seed=11), random(4, 3, seed=12)
    rows[1] = 0
    reference[2] = 0
    for route in ("matching", "exact"):
        if route == "exact":
            pytest.importorskip("ot")
        assert alignment(rows, reference, route).isfinite().all()  # type: ignore[arg-type]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    require("matching")
    with pytest.raises(OptionError, match=r"needs the package POT; install it with: pip install 'caprompt\[transport\]'"):
        require("exact")
