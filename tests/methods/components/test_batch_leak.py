"""The released programs' leak: exactly theirs where it is asked for, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from helpers import TINY, tiny_vit
from torch import Tensor

from caprompt.methods.caprompt import CAPrompt, CAPromptOptions
from caprompt.methods.components.batch_leak import mix_batch
from caprompt.methods.options import Options
from caprompt.protocols import is_released


def dealt(batch: int) -> list[str]:
    """What each image gets as (keys, values), by the names of the rows."""
    names = [f"{part}{image}" for part in "KV" for image in range(batch)]
    rows = torch.arange(2 * batch).view(1, 2, batch, 1, 1)
    keys, values = mix_batch(rows).view(2, batch).tolist()
    return [f"{names[key]} {names[value]}" for key, value in zip(keys, values, strict=True)]


def test_the_rows_are_dealt_out_two_at_a_time() -> None:
    assert dealt(1) == ["K0 V0"]
    assert dealt(2) == ["K0 K1", "V0 V1"]
    assert dealt(3) == ["K0 K1", "K2 V0", "V1 V2"]
    assert dealt(4) == ["K0 K1", "K2 K3", "V0 V1", "V2 V3"]
    assert dealt(8)[3:5] == ["K6 K7", "V0 V1"]


def test_layers_rows_and_widths_stay_where_they_are() -> None:
    rows = torch.randn(3, 2, 4, 5, 6)
    read = mix_batch(rows)
    assert read.shape == rows.shape
    assert torch.equal(read[2, 0, 1], rows[2, 0, 2])
    assert torch.equal(read[1, 1, 2], rows[1, 1, 1])


def made(protocol: str) -> CAPrompt:
    method = CAPrompt(tiny_vit(), CAPromptOptions(length=4, protocol=protocol, classifier="aligned"))  # type: ignore[arg-type]
    for number, classes in enumerate((2, 1, 3)):
        method.begin_task(classes, torch.Generator().manual_seed(number))
        method.prompt.data.normal_(0, 1, generator=torch.Generator().manual_seed(10 + number))
    method.head.weight.data.mul_(4)
    return method


def images(count: int) -> Tensor:
    return torch.randn(count, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("protocol", ["released", "honest"])
def test_an_answer_depends_on_the_batch_only_as_released(protocol: str) -> None:
    method, batch = made(protocol), images(6)
    together, alone = method.predict(batch).logits[3], method.predict(batch[3:4]).logits[0]
    other_company = method.predict(batch.flip(0)).logits[2]
    if protocol == "honest":
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
        torch.testing.assert_close(together, other_company, rtol=0, atol=1e-5)
    else:
        assert (together - alone).abs().max() > 0.01
        assert (together - other_company).abs().max() > 0.01


def test_an_image_alone_gets_its_own_prompt_all_the_same() -> None:
    one = images(1)
    torch.testing.assert_close(made("released").predict(one).logits, made("honest").predict(one).logits)


def test_training_and_class_statistics_leak_too() -> None:
    batch, labels = images(6), torch.tensor([3, 4, 5, 3, 4, 5])
    honest, released = made("honest"), made("released")
    for name, part in honest.loss(batch, labels).items():
        same = bool(torch.isclose(part, released.loss(batch, labels)[name], atol=1e-4))
        assert same == (name == "linear"), name  # the linear constraint looks at prompts, not at images
    assert (honest.own_features(batch, labels) - released.own_features(batch, labels)).abs().max() > 0.01


def test_prompts_that_go_as_one_batch_are_misread_each_for_itself() -> None:
    """Mixture and own prompt share a pass; in the authors' program each has a pass of its own."""
    method, batch = made("released"), images(4)
    stem = method.vit.stem(batch)
    prompts = [method.mix(torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)]
    apart = torch.cat([method.features_under(stem, prompt) for prompt in prompts])
    torch.testing.assert_close(method.features_under(stem, *prompts), apart, rtol=0, atol=1e-5)


def test_nothing_leaks_unasked() -> None:
    assert CAPromptOptions().protocol == "honest"
    assert not is_released(CAPromptOptions())
    assert not is_released(Options())
    assert is_released(CAPromptOptions(protocol="released", classifier="aligned"))
