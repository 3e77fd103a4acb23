from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.backbones.vit import Place, ViT, modulate
from caprompt.errors import OptionError
from caprompt.methods.components.prefix import PLACES, ModulatedPrefix, Prefix, PrefixOptions, draw_prompt, resolve_layers

FACTOR = 0.3
PREFIX_ROWS = 2
LAYERS = tuple(range(TINY.depth))


def make_images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(1))


def make_rows(count: int = 3, seed: int = 0) -> Tensor:
    """Random prompts of `count` images, with scales and shifts: (L, 2, B, n + 4, D)."""
    shape = (TINY.depth, 2, count, PREFIX_ROWS + len(PLACES), TINY.width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def keep_one_place(rows: Tensor, layer: int, place: Place) -> Tensor:
    """Return the prompts with zeros for the scales and shifts of all other places."""
    row = PREFIX_ROWS + PLACES.index(place)
    kept = rows.clone()
    kept[:, :, :, PREFIX_ROWS:] = 0
    kept[layer, :, :, row] = rows[layer, :, :, row]
    return kept


def run_by_hand(vit: ViT, images: Tensor, rows: Tensor, changed_layer: int, changed_place: Place) -> Tensor:
    """Features of a pass with prefixes, and with a single input or output x changed to x + f (s x + t)."""
    tokens = vit.embed(images)
    for layer, block in enumerate(vit.blocks):
        keys, values = rows[layer, :, :, :PREFIX_ROWS]
        # (B, 1, D) each
        scale, shift = rows[layer, :, :, PREFIX_ROWS + PLACES.index(changed_place)].unsqueeze(2)

        def change(place: Place, x: Tensor, layer: int = layer, scale: Tensor = scale, shift: Tensor = shift) -> Tensor:
            return x + FACTOR * (scale * x + shift) if (layer, place) == (changed_layer, changed_place) else x

        attention: Tensor = block.attn(change("attention_input", block.norm1(tokens)), (keys, values))
        tokens = tokens + change("attention_output", attention)
        tokens = tokens + change("mlp_output", block.mlp(change("mlp_input", block.norm2(tokens))))
    return vit.apply_final_norm(tokens)[:, 0]


def test_rows_are_used_at_their_layers() -> None:
    rows = torch.randn(2, 2, 3, 4, TINY.width)  # layers 1 and 4, keys and values, 3 images, 4 rows
    prefix = Prefix(rows, (1, 4))
    keys_values = prefix.prefix(4, torch.zeros(3, 17, TINY.width))
    assert keys_values is not None
    assert torch.equal(keys_values[0], rows[1, 0])
    assert torch.equal(keys_values[1], rows[1, 1])
    assert prefix.prefix(2, torch.zeros(3, 17, TINY.width)) is None


def test_a_shared_prompt_is_the_same_for_every_image() -> None:
    prompt = torch.randn(1, 2, 4, TINY.width)
    keys_values = Prefix.shared(prompt, (0,), batch=5).prefix(0, torch.zeros(5, 17, TINY.width))
    assert keys_values is not None
    assert keys_values[0].shape == (5, 4, TINY.width)
    assert all(torch.equal(keys_values[1][row], prompt[0, 1]) for row in range(5))


def test_layers_as_list_range_number_or_all() -> None:
    assert resolve_layers(TINY, PrefixOptions()) == (0, 1)
    assert resolve_layers(TINY, PrefixOptions(layers=[1, 0, 1])) == (0, 1)  # type: ignore[arg-type]
    assert resolve_layers(TINY, PrefixOptions(layers=1)) == (1,)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1 item"):
        PrefixOptions(layers=[])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="names layer 2"):
        resolve_layers(TINY, PrefixOptions(layers="0-2"))  # type: ignore[arg-type]


def test_length_counts_keys_and_values_together() -> None:
    assert draw_prompt(TINY, PrefixOptions(length=10, layers=(1,)), torch.Generator()).shape == (1, 2, 5, TINY.width)
    with pytest.raises(ValueError, match="multiple of 2"):
        PrefixOptions(length=5)


def test_first_n_layers_are_limited_by_the_depth() -> None:
    assert resolve_layers(TINY, PrefixOptions(layers="first-1")) == (0,)
    assert resolve_layers(TINY, PrefixOptions(layers="first-5")) == (0, 1)
    for invalid in ("first-0", "first", "last-2"):
        with pytest.raises(ValueError, match="layers"):
            PrefixOptions(layers=invalid)


# -- scales and shifts ---------------------------------------------------------------------------------------------------------


def test_scales_and_shifts_of_zero_change_nothing() -> None:
    vit, rows = tiny_vit(), make_rows()
    rows[:, :, :, PREFIX_ROWS:] = 0
    without = vit(make_images(), Prefix(rows[:, :, :, :PREFIX_ROWS], LAYERS))
    torch.testing.assert_close(vit(make_images(), ModulatedPrefix(rows, LAYERS, FACTOR)), without, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("place", PLACES)
def test_values_at_each_place(place: Place, layer: int) -> None:
    vit, rows = tiny_vit(), make_rows()
    features = vit(make_images(), ModulatedPrefix(keep_one_place(rows, layer, place), LAYERS, FACTOR))
    torch.testing.assert_close(features, run_by_hand(vit, make_images(), rows, layer, place), rtol=1e-4, atol=1e-5)
    unmodulated = vit(make_images(), Prefix(rows[:, :, :, :PREFIX_ROWS], LAYERS))
    assert (features - unmodulated).abs().max() > 0.01


def test_a_shared_stem_is_not_used_for_a_changed_input_of_the_first_block() -> None:
    """The stem holds the projection of the unchanged input, which other passes still use."""
    vit, rows = tiny_vit(), keep_one_place(make_rows(), 0, "attention_input")
    stem = vit.stem(make_images())
    before = vit(stem)
    modulated = vit(stem, ModulatedPrefix(rows, LAYERS, FACTOR))
    torch.testing.assert_close(modulated, run_by_hand(vit, make_images(), rows, 0, "attention_input"), rtol=1e-4, atol=1e-5)
    assert torch.equal(vit(stem), before)


def test_mixed_prompts_have_mixed_scales_and_shifts() -> None:
    one, other, x = make_rows(seed=1), make_rows(seed=2), torch.randn(3, 17, TINY.width)
    weights = torch.tensor([0.2, 0.5, 1.0]).view(3, 1, 1)  # of the first prompt, for each image
    mixed = ModulatedPrefix(weights * one + (1 - weights) * other, LAYERS, FACTOR)
    for layer in LAYERS:
        for place in PLACES:
            first, second = (modulate(ModulatedPrefix(rows, LAYERS, FACTOR), layer, place, x) for rows in (one, other))
            torch.testing.assert_close(
                modulate(mixed, layer, place, x), weights * first + (1 - weights) * second, rtol=1e-5, atol=1e-5
            )


def test_each_image_has_its_own_scales_and_shifts() -> None:
    vit, rows = tiny_vit(), make_rows(4)
    together = vit(make_images(4), ModulatedPrefix(rows, LAYERS, FACTOR))
    for image in range(4):
        alone = ModulatedPrefix(rows[:, :, image : image + 1], LAYERS, FACTOR)
        torch.testing.assert_close(together[image : image + 1], vit(make_images(4)[image : image + 1], alone), rtol=1e-4, atol=1e-5)


def test_layers_without_a_prompt_are_not_modulated() -> None:
    rows, x = make_rows()[1:], torch.randn(3, 17, TINY.width)
    modulated = ModulatedPrefix(rows, (1,), FACTOR)
    for place in PLACES:
        assert modulate(modulated, 0, place, x) is x
        assert not torch.equal(modulate(modulated, 1, place, x), x)


def test_scales_and_shifts_get_gradients_at_every_place() -> None:
    rows = make_rows().requires_grad_()
    tiny_vit()(make_images(), ModulatedPrefix(rows, LAYERS, FACTOR)).square().sum().backward()
    assert rows.grad is not None
    assert (rows.grad.abs().amax(dim=-1) > 0).all()
