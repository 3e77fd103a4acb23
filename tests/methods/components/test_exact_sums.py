from __future__ import annotations

import torch
from helpers import TINY, tiny_vit

from caprompt.methods.components.exact_sums import compute_each
from caprompt.methods.ncm import NearestClassMeanOptions
from caprompt.methods.ranpac import RanPACOptions


def test_features_are_the_same_bits_in_any_batch() -> None:
    vit, generator = tiny_vit(), torch.Generator().manual_seed(0)
    images = torch.randn(13, 3, TINY.image_size, TINY.image_size, generator=generator)
    order = torch.randperm(13, generator=generator)
    features = compute_each(vit, images)
    assert torch.equal(compute_each(vit, images[order]), features[order])
    assert torch.equal(torch.cat([compute_each(vit, part) for part in images.split(5)]), features)
    torch.testing.assert_close(features, vit(images))


def test_models_saved_before_the_option_keep_their_sums() -> None:
    for options in (NearestClassMeanOptions, RanPACOptions):
        assert options().exact_sums
        assert not options.complete_saved({})["exact_sums"]
