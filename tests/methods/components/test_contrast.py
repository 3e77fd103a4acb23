from __future__ import annotations

import torch
import torch.nn.functional as F

from caprompt.methods.components.contrast import TEMPERATURE, contrastive_loss


def test_rows_are_compared_with_all_others_except_empty_centers() -> None:
    generator = torch.Generator().manual_seed(0)
    features, centers = torch.randn(3, 5, generator=generator), torch.randn(2, 5, generator=generator)
    rows = torch.cat([centers[1:], features])
    expected = F.cross_entropy(rows @ rows.T / TEMPERATURE, torch.arange(4))
    torch.testing.assert_close(contrastive_loss(features, centers, torch.tensor([False, True])), expected)
