from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TINY, same_tensors, squares, tiny_vit
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm

from caprompt import ContinualClassifier
from caprompt.errors import DataError
from caprompt.methods.convprompt import ConvolvedPrefix, ConvPrompt, ConvPromptOptions

IMAGES = torch.randn(5, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([2, 3, 4, 2, 0])


def made(tasks: tuple[int, ...] = (2, 3), **options: object) -> ConvPrompt:
    method = ConvPrompt(tiny_vit(), ConvPromptOptions(length=4, filters=2, kernel=3, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def test_shapes_are_those_of_the_paper() -> None:
    """36 x 80 embeddings become 20 rows for heads of 64, in 7 layers of 12."""
    from caprompt.backbones.vit import ViT, ViTConfig

    with torch.device("meta"):
        vit = ViT(ViTConfig(224, 16, 768, 12, 12, 3072))
    method = ConvPrompt(vit, ConvPromptOptions())
    assert method.embedding.shape == (7, 2, 12, 36, 80)
    assert sum(p.numel() for p in method.match.parameters()) == 369_216
    method.bank.grow(50, torch.Generator().manual_seed(0))
    assert method.bank.weight().numel() + method.bank.bias().numel() == 2_436_000


def test_prefixes_are_mixed_by_cosine_and_carry_the_previous_layers() -> None:
    method = made()
    adaptation = ConvolvedPrefix(method)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, 17, TINY.width, generator=generator) for _ in range(2)]
    prefixes = [adaptation.prefix(layer, x) for layer, x in enumerate(inputs)]
    made_rows, keys = method.bank(method.embedding), method.bank.keys()
    own: list[Tensor] = []
    for layer, x in enumerate(inputs):
        rows = torch.zeros(2, 3, 2, TINY.width)
        for image in range(3):
            matched = method.match(x[image, 0])
            for number in range(4):
                rows[:, image] += (cosine_similarity(matched, keys[number], dim=0) * made_rows[layer, number]).detach()
        own.append(rows)
    expected = [own[0], own[1] + own[0]]
    for layer, prefix in enumerate(prefixes):
        assert prefix is not None
        torch.testing.assert_close(torch.stack(prefix), expected[layer])
    assert adaptation.prefix(7, inputs[0]) is None


def test_losses_are_those_of_the_formula() -> None:
    method = made(retain=0.5)
    method.consolidate([], torch.Generator())
    method.embedding.data[0, 0, 0, 0, :2] += torch.tensor([0.25, -0.5])
    method.match[0].bias.data[0] += 2
    logits = method.head(layer_norm(method.vit(IMAGES, ConvolvedPrefix(method)), (TINY.width,)))
    own = [logits[row, 2:] if label >= 2 else logits[row, :2] for row, label in enumerate(LABELS.tolist())]
    within = LABELS - 2 * (LABELS >= 2)
    expected = torch.stack([cross_entropy(row, label) for row, label in zip(own, within, strict=True)]).mean()
    losses = method.loss(IMAGES, LABELS)
    torch.testing.assert_close(losses["ce"], expected)
    assert float(losses["retain"].detach()) == pytest.approx(0.5 * (0.25 + 0.5 + 2), rel=1e-4)
    assert set(made((2,)).loss(IMAGES[:1], LABELS[4:])) == {"ce"}


def test_keys_learn_and_those_of_earlier_tasks_do_not() -> None:
    method = made()
    torch.stack(list(method.loss(IMAGES, LABELS).values())).sum().backward()
    assert method.bank.keys.newest.grad is not None
    assert method.bank.keys.newest.grad.abs().max() > 0
    assert not method.bank.keys.earlier.requires_grad


def test_descriptions_set_the_number_of_filters(tmp_path: Path, backbone: Path) -> None:
    """green, red: nothing known, all 4; blue: one of two attributes again, 2; cyan: everything again, 1 at least."""
    text = tmp_path / "colours.txt"
    text.write_text("red: warm\ngreen: cold\nblue: cold\ncyan: warm, cold\n", encoding="utf-8")
    settings = {"epochs": 1, "length": 4, "filters": 4, "kernel": 3, "descriptions": str(text)}
    model = ContinualClassifier("convprompt", backbone, **settings)  # type: ignore[arg-type]
    for task in (["red", "green"], ["blue"], ["cyan"]):
        model.learn(squares(task, each=2))
    assert isinstance(model.method, ConvPrompt)
    assert model.method.filter_counts.tolist() == [4, 2, 1]
    assert model.method.bank.keys().shape[0] == 7
    model.save(tmp_path / "model")
    text.unlink()  # a model that only answers needs no descriptions
    loaded = ContinualClassifier.load(tmp_path / "model")
    assert same_tensors(loaded.method.state(), model.method.state())
    with pytest.raises(DataError, match="cannot be read"):
        loaded.learn(squares(["white"], each=2))
    assert loaded.classes == model.classes


def test_a_class_without_description_is_named_before_anything_is_learned(tmp_path: Path, backbone: Path) -> None:
    text = tmp_path / "colours.txt"
    text.write_text("red: warm\n", encoding="utf-8")
    model = ContinualClassifier("convprompt", backbone, epochs=1, length=4, kernel=3, descriptions=str(text))
    with pytest.raises(DataError, match="does not describe the class 'blue'"):
        model.learn(squares(["red", "blue"], each=2))
    assert model.classes == []
    assert model.method.task_sizes == []
