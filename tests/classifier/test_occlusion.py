from __future__ import annotations

import pytest
import torch

from caprompt.classifier.occlusion import (
    REMOVED_SHARE,
    compute_heat_map,
    draw_closer_removals,
    draw_removals,
    fit_heat,
    remove_patches,
    select_hottest,
)
from caprompt.utils.random import make_generator

TRUE_HEAT = torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]]).double()


def draw(copies: int, grid: int) -> torch.Tensor:
    return draw_removals(copies, grid, make_generator(0, "test"))


def test_an_additive_margin_is_recovered() -> None:
    removals = draw(2000, 4)
    result = fit_heat(removals, 7 - (removals * TRUE_HEAT).sum(dim=(1, 2)))
    shrinkage = result.heat[0, 1] / 2  # by the ridge penalty
    assert 0.6 < shrinkage < 1
    torch.testing.assert_close(result.heat, shrinkage * TRUE_HEAT, atol=0.06, rtol=0)
    assert result.fit > 0.85


def test_fit_is_that_of_regressions_without_each_copy() -> None:
    """The formula for leaving out a copy, against leaving it out."""
    removals = draw(60, 4)
    margins = torch.randn(60, generator=torch.Generator().manual_seed(1)).double() - (removals * TRUE_HEAT).sum(dim=(1, 2))
    inputs, errors = removals.double().flatten(1), []
    for left_out in range(60):
        rest = [index for index in range(60) if index != left_out]
        center, mean = inputs[rest].mean(dim=0), margins[rest].mean()
        centered = inputs[rest] - center
        # With the penalty of all 60 copies.
        slope = torch.linalg.solve(centered.T @ centered + 6 * torch.eye(16).double(), centered.T @ (margins[rest] - mean))
        errors.append(margins[left_out] - mean - (inputs[left_out] - center) @ slope)
    expected = 1 - torch.stack(errors).square().sum() / (margins - margins.mean()).square().sum()
    assert fit_heat(removals, margins).fit == pytest.approx(float(expected), abs=1e-9)


def test_a_margin_that_nothing_changes_has_no_heat() -> None:
    result = compute_heat_map(lambda images: torch.zeros(len(images)), torch.rand(3, 16, 16), 4, copies=40, batch_size=7)
    assert not result.heat.any()
    assert result.fit == 0


@pytest.mark.parametrize("grid", [4, 14, 37])
def test_copies_lack_random_shares_of_the_patches(grid: int) -> None:
    removals = draw(500, grid)
    assert removals.shape == (500, grid, grid)
    shares = removals.float().mean(dim=(1, 2))
    assert shares.mean() == pytest.approx(sum(REMOVED_SHARE) / 2, abs=0.02)
    assert torch.equal(removals, draw(500, grid))
    assert len(removals.flatten(1).unique(dim=1)[0]) == (grid if grid <= 16 else 13) ** 2  # 37 patches in cells of 3


@pytest.mark.parametrize("grid", [4, 37])
def test_the_second_half_lacks_mostly_what_the_first_half_marked(grid: int) -> None:
    heat = torch.zeros(grid, grid)
    heat[: grid // 2] = 1.0
    shares = draw_closer_removals(heat, 2000, make_generator(0, "test")).float().mean(dim=0)
    assert shares[0].mean() == pytest.approx(0.5, abs=0.05)
    assert shares[-1].mean() == pytest.approx(0.12, abs=0.05)


def test_the_second_half_depends_on_the_first() -> None:
    """A margin that hangs on one patch: copies of the second half lack it more often than other patches."""
    seen: list[torch.Tensor] = []

    def margin(images: torch.Tensor) -> torch.Tensor:
        is_removed = images[:, 0, 0, 0] != 1.0
        seen.append(is_removed)
        return -is_removed.double()

    image = torch.zeros(3, 16, 16)
    image[:, :4, :4] = 1.0
    result = compute_heat_map(margin, image, 4, copies=400, batch_size=50)
    assert int(result.heat.argmax()) == 0
    first, second = (torch.cat(part).double().mean() for part in (seen[:4], seen[4:]))
    assert first < 0.4 < second


def test_removed_patches_have_the_mean_color_and_others_stay() -> None:
    image = torch.rand(3, 16, 16)
    removals = torch.zeros(2, 4, 4, dtype=torch.bool)
    removals[1, 2, 0] = True
    kept, without = remove_patches(image, removals)
    assert torch.equal(kept, image)
    torch.testing.assert_close(without[:, 8:12, 0:4], image.mean(dim=(1, 2), keepdim=True).expand(3, 4, 4))
    without[:, 8:12, 0:4] = image[:, 8:12, 0:4]
    assert torch.equal(without, image)


def test_batches_do_not_matter() -> None:
    image, weights = torch.rand(3, 16, 16), torch.rand(3, 16, 16)
    maps = [compute_heat_map(lambda images: (images * weights).sum(dim=(1, 2, 3)), image, 4, 64, size).heat for size in (64, 5)]
    torch.testing.assert_close(maps[0], maps[1], atol=1e-4, rtol=0)


def test_the_hottest_share_is_selected() -> None:
    assert select_hottest(TRUE_HEAT, 2 / 16).nonzero().tolist() == [[0, 1], [3, 0]]
    assert int(select_hottest(torch.zeros(8, 8), 0.1).sum()) == 6
