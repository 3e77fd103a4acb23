"""Aligning the neurons of two layers by optimal transport, so that layers trained apart can be averaged.

A neuron is a row of a weight matrix. Row i of the new matrix and row j of the reference are as far apart as their directions,

    cost_ij = |w_i / |w_i| - r_j / |r_j||^2

and the plan that moves the new neurons' mass onto the reference's at the least total cost says which new neurons make up each
place of the reference. Two routes:

    exact       a neuron's mass is its share of the L1 norms; solved exactly by the POT library
    matching    every neuron has the same mass; the optimal plan is then a permutation, an assignment problem (SciPy)

For a plan of 3,840 x 3,840 matching takes a small part of the time and needs no further package; benchmarks/transport.py
measures what it changes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from caprompt.errors import OptionError

__all__ = ["Route", "alignment", "require"]

Route = Literal["matching", "exact"]


def require(route: Route) -> None:
    """Say what to install where a route needs a package that is not there."""
    if route == "exact":
        try:
            import ot  # noqa: F401
        except ImportError as error:
            raise OptionError(
                "transport='exact' needs the package POT; install it with: pip install 'caprompt[transport]', or use 'matching'"
            ) from error


def alignment(rows: Tensor, reference: Tensor, route: Route, mass: Tensor | None = None) -> Tensor:
    """The plan (n, m) between n new rows and m of the reference, its columns scaled to sum to one.

    Its transpose times anything per new neuron puts that in the reference's places. `mass` (n,) weighs the rows, where it should
    not be their own L1 norms.

    >>> alignment(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.eye(2), "matching")
    tensor([[0., 1.],
            [1., 0.]])
    """
    directions, targets = F.normalize(rows.double(), dim=1), F.normalize(reference.double(), dim=1)
    cost = (directions.square().sum(dim=1, keepdim=True) + targets.square().sum(dim=1) - 2 * directions @ targets.T).clamp_min(0)
    if route == "matching":
        plan = matching_plan(cost)
    else:
        plan = exact_plan(cost, rows.abs().sum(dim=1) if mass is None else mass, reference.abs().sum(dim=1))
    return (plan / plan.sum(dim=0).clamp_min(torch.finfo(plan.dtype).tiny)).to(rows)


def matching_plan(cost: Tensor) -> Tensor:
    """Which new neuron goes to which place, one to one: (n, n), ones and zeros."""
    from scipy.optimize import linear_sum_assignment

    new, place = linear_sum_assignment(cost.cpu().numpy())
    plan = torch.zeros_like(cost)
    plan[torch.from_numpy(new), torch.from_numpy(place)] = 1
    return plan


def exact_plan(cost: Tensor, mass: Tensor, reference_mass: Tensor) -> Tensor:
    """The cheapest way to move the one mass onto the other, each scaled to sum to one: (n, m)."""
    import ot

    source, target = (part.double().cpu() / part.double().sum().cpu() for part in (mass, reference_mass))
    plan = ot.emd(source.numpy(), target.numpy(), cost.cpu().numpy(), numItermax=10_000_000)
    return torch.from_numpy(plan).to(cost)
