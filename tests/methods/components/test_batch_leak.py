"""The batch leak of the released code: exact with `protocol="released"`, absent otherwise."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.caprompt import CAPrompt, CAPromptOptions
from caprompt.methods.components.batch_leak import mix_batch
from caprompt.methods.options import Options
from caprompt.protocols import is_released
from caprompt.utils.threads import use_threads


def name_rows(batch: int) -> list[str]:
    """Return the names of the rows that each image gets as keys and values."""
    names = [f"{part}{image}" for part in "KV" for image in range(batch)]
    rows = torch.arange(2 * batch).view(1, 2, batch, 1, 1)
    keys, values = mix_batch(rows).view(2, batch).tolist()
    return [f"{names[key]} {names[value]}" for key, value in zip(keys, values, strict=True)]


def test_rows_are_assigned_in_pairs() -> None:
    assert name_rows(1) == ["K0 V0"]
    assert name_rows(2) == ["K0 K1", "V0 V1"]
    assert name_rows(3) == ["K0 K1", "K2 V0", "V1 V2"]
    assert name_rows(4) == ["K0 K1", "K2 K3", "V0 V1", "V2 V3"]
    assert name_rows(8)[3:5] == ["K6 K7", "V0 V1"]


def test_layers_rows_and_width_are_preserved() -> None:
    rows = torch.randn(3, 2, 4, 5, 6)
    mixed = mix_batch(rows)
    assert mixed.shape == rows.shape
    assert torch.equal(mixed[2, 0, 1], rows[2, 0, 2])
    assert torch.equal(mixed[1, 1, 2], rows[1, 1, 1])


def make_method(protocol: str) -> CAPrompt:
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, protocol=protocol, classifier="aligned"))  # type: ignore[arg-type]
    for number, num_classes in enumerate((2, 1, 3)):
        method.begin_task(num_classes, torch.Generator().manual_seed(number))
        method.prompt.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    method.head.weight.data.mul_(4)
    return method


def make_images(count: int) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("protocol", ["released", "honest"])
def test_predictions_depend_on_the_batch_only_with_released_protocol(protocol: str) -> None:
    method, batch = make_method(protocol), make_images(6)
    together, alone = method.predict(batch).logits[3], method.predict(batch[3:4]).logits[0]
    reordered = method.predict(batch.flip(0)).logits[2]
    if protocol == "honest":
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
        torch.testing.assert_close(together, reordered, rtol=0, atol=1e-5)
    else:
        assert (together - alone).abs().max() > 0.01
        assert (together - reordered).abs().max() > 0.01


def test_a_single_image_gets_its_own_prompt() -> None:
    one = make_images(1)
    torch.testing.assert_close(make_method("released").predict(one).logits, make_method("honest").predict(one).logits)


def test_training_and_class_statistics_leak_too() -> None:
    batch, labels = make_images(6), torch.tensor([3, 4, 5, 3, 4, 5])
    honest, released = make_method("honest"), make_method("released")
    for name, term in honest.loss(batch, labels).items():
        same = bool(torch.isclose(term, released.loss(batch, labels)[name], atol=1e-4))
        assert same == (name == "linear"), name  # the linear constraint depends on prompts, not on images
    assert (honest.extract_own_features(batch, labels) - released.extract_own_features(batch, labels)).abs().max() > 0.01


@pytest.mark.parametrize("protocol", ["released", "honest"])
def test_which_images_are_a_batch_does_not_depend_on_the_number_of_threads(protocol: str) -> None:
    method, batch, features = make_method(protocol), make_images(12), []
    for threads in (1, 2):
        with use_threads(threads):
            features.append(method.extract_own_features(batch, torch.arange(12) % 6))
    torch.testing.assert_close(*features, rtol=0, atol=1e-5)


def test_prompts_in_one_pass_are_mixed_separately() -> None:
    """The mixed and the newest prompt share a pass; in the authors' code each has its own."""
    method, batch = make_method("released"), make_images(4)
    stem = method.vit.stem(batch)
    prompts = [method.aggregate_prompts(torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)]
    separate = torch.cat([method.extract_features(stem, prompt) for prompt in prompts])
    torch.testing.assert_close(method.extract_features(stem, *prompts), separate, rtol=0, atol=1e-5)


def test_protocol_is_honest_by_default() -> None:
    assert CAPromptOptions().protocol == "honest"
    assert not is_released(CAPromptOptions())
    assert not is_released(Options())
    assert is_released(CAPromptOptions(protocol="released", classifier="aligned"))
