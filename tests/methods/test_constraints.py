from __future__ import annotations

import pytest
import torch
from helpers import TINY

from caprompt.methods.caprompt import concave_gap, linear_loss


def test_concave_gap_is_jensens_inequality() -> None:
    """For a concave prediction (here the square root) the gap is never positive, for a convex one never negative."""
    p, a, b = torch.rand(3, 100, generator=torch.Generator().manual_seed(1))
    mixed = p * a + (1 - p) * b
    assert (concave_gap(p, a.sqrt(), b.sqrt(), mixed.sqrt()) <= 1e-6).all()
    assert (concave_gap(p, a.square(), b.square(), mixed.square()) >= -1e-6).all()


def test_linear_loss_is_zero_on_a_line_and_two_backwards() -> None:
    first, step = torch.randn(2, TINY.depth, 2, 2, TINY.width, generator=torch.Generator().manual_seed(2))
    assert float(linear_loss(first + 3 * step, first + step, first)) == pytest.approx(0, abs=1e-6)
    assert float(linear_loss(first - step, first + step, first)) == pytest.approx(2, abs=1e-6)
