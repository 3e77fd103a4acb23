from __future__ import annotations

import torch
from helpers import TINY, tiny_vit

from caprompt.methods.components.tokens import Tokens


def test_rows_are_used_at_their_layers() -> None:
    rows = torch.randn(2, 3, 4, TINY.width)  # layers 0 and 5, 3 images, 4 rows
    tokens = Tokens(rows, (0, 5))
    result = tokens.tokens(5, torch.zeros(3, 17, TINY.width))
    assert result is not None
    assert torch.equal(result, rows[1])
    assert tokens.tokens(1, torch.zeros(3, 17, TINY.width)) is None


def test_order_of_rows_does_not_matter() -> None:
    vit, images = tiny_vit(), torch.randn(2, 3, TINY.image_size, TINY.image_size)
    rows = torch.randn(1, 2, 4, TINY.width)
    features = vit(images, Tokens(rows, (0,)))
    torch.testing.assert_close(features, vit(images, Tokens(rows.flip(2), (0,))), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(features, vit(images), atol=1e-2)
