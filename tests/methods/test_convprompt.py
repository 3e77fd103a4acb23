from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import TINY, equal_tensors, squares, tiny_vit
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm

from caprompt import ContinualClassifier
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.errors import DataError
from caprompt.methods.convprompt import (
    ConvolvedPrefix,
    ConvPrompt,
    ConvPromptOptions,
    FilterBank,
    class_similarity,
    collect_attributes,
    read_descriptions,
    split_words,
)

IMAGES = torch.randn(5, 3, TINY.image_size, TINY.image_size, generator=torch.Generator().manual_seed(5))
LABELS = torch.tensor([2, 3, 4, 2, 0])


def make_method(tasks: tuple[int, ...] = (2, 3), **options: object) -> ConvPrompt:
    method = ConvPrompt(tiny_vit(), ConvPromptOptions(length=4, filters=2, kernel=3, **options))  # type: ignore[arg-type]
    for number, classes in enumerate(tasks):
        method.begin_task(classes, torch.Generator().manual_seed(number))
    return method


def test_shapes_match_the_paper() -> None:
    """Embeddings of 36 x 80 become 20 rows for heads of 64, in 7 of 12 layers."""
    with torch.device("meta"):
        vit = ViT(ViTConfig(224, 16, 768, 12, 12, 3072))
    method = ConvPrompt(vit, ConvPromptOptions())
    assert method.embedding.shape == (7, 2, 12, 36, 80)
    assert sum(p.numel() for p in method.match.parameters()) == 369_216
    method.bank.grow(50, torch.Generator().manual_seed(0))
    assert method.bank.weight().numel() + method.bank.bias().numel() == 2_436_000


def test_prefixes_are_weighted_by_cosines_and_include_the_previous_layer() -> None:
    method = make_method()
    adaptation = ConvolvedPrefix(method)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, 17, TINY.width, generator=generator) for _ in range(2)]
    prefixes = [adaptation.prefix(layer, x) for layer, x in enumerate(inputs)]
    outputs, keys = method.bank(method.embedding), method.bank.keys()
    own: list[Tensor] = []
    for layer, x in enumerate(inputs):
        rows = torch.zeros(2, 3, 2, TINY.width)
        for image in range(3):
            matched = method.match(x[image, 0])
            for number in range(4):
                rows[:, image] += (cosine_similarity(matched, keys[number], dim=0) * outputs[layer, number]).detach()
        own.append(rows)
    expected = [own[0], own[1] + own[0]]
    for layer, prefix in enumerate(prefixes):
        assert prefix is not None
        torch.testing.assert_close(torch.stack(prefix), expected[layer])
    assert adaptation.prefix(7, inputs[0]) is None


def test_losses_match_reference() -> None:
    method = make_method(retain=0.5)
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
    assert set(make_method((2,)).loss(IMAGES[:1], LABELS[4:])) == {"ce"}


def test_only_keys_of_the_newest_task_are_trained() -> None:
    method = make_method()
    torch.stack(list(method.loss(IMAGES, LABELS).values())).sum().backward()
    assert method.bank.keys.newest.grad is not None
    assert method.bank.keys.newest.grad.abs().max() > 0
    assert not method.bank.keys.earlier.requires_grad


def test_descriptions_set_the_number_of_filters(tmp_path: Path, backbone: Path) -> None:
    """red, green: nothing is old, 4; blue: one of two attributes recurs, 2; cyan: all recur, 1."""
    text = tmp_path / "colors.txt"
    text.write_text("red: warm\ngreen: cold\nblue: cold\ncyan: warm, cold\n", encoding="utf-8")
    settings = {"epochs": 1, "length": 4, "filters": 4, "kernel": 3, "descriptions": str(text)}
    model = ContinualClassifier("convprompt", backbone, **settings)  # type: ignore[arg-type]
    for task in (["red", "green"], ["blue"], ["cyan"]):
        model.learn(squares(task, each=2))
    assert isinstance(model.method, ConvPrompt)
    assert model.method.filter_counts.tolist() == [4, 2, 1]
    assert model.method.bank.keys().shape[0] == 7
    model.save(tmp_path / "model")
    text.unlink()  # descriptions are not needed for prediction
    loaded = ContinualClassifier.load(tmp_path / "model")
    assert equal_tensors(loaded.method.state(), model.method.state())
    with pytest.raises(DataError, match="cannot be read"):
        loaded.learn(squares(["white"], each=2))
    assert loaded.classes == model.classes


def test_class_without_description_is_reported_before_training(tmp_path: Path, backbone: Path) -> None:
    text = tmp_path / "colors.txt"
    text.write_text("red: warm\n", encoding="utf-8")
    model = ContinualClassifier("convprompt", backbone, epochs=1, length=4, kernel=3, descriptions=str(text))
    with pytest.raises(DataError, match="does not describe the class 'blue'"):
        model.learn(squares(["red", "blue"], each=2))
    assert model.classes == []
    assert model.method.task_sizes == []


# -- class descriptions ----------------------------------------------------------------------------


def write_descriptions(directory: Path, text: str) -> Path:
    path = directory / "classes.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_read_descriptions(tmp_path: Path) -> None:
    descriptions = read_descriptions(write_descriptions(tmp_path, "tabby: Striped fur, green eyes,\n\n big cat :roar\n"))
    assert descriptions == {"tabby": [{"striped", "fur"}, {"green", "eyes"}], "big cat": [{"roar"}]}


@pytest.mark.parametrize("line", ["tabby", "tabby:", "tabby: , ,"])
def test_line_without_attributes_is_reported(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match=f"line 2 of .*not '{line.strip()}'"):
        read_descriptions(write_descriptions(tmp_path, f"cat: fur\n{line}\n"))


def test_missing_file_and_missing_class_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.txt' cannot be read"):
        read_descriptions(tmp_path / "none.txt")
    with pytest.raises(DataError, match="does not describe the class 'dog'"):
        collect_attributes(["cat", "dog"], {"cat": [split_words("fur")]}, "classes.txt")


def test_class_similarity_matches_manual_computation() -> None:
    """striped fur: best match 'soft fur', 1 of 3 words; green eyes: recurs; beak: no match."""
    old = [split_words("striped fur"), split_words("green eyes"), split_words("beak")]
    new = [split_words("soft fur"), split_words("eyes, green"), split_words("long tail")]
    assert class_similarity(old, new) == pytest.approx((1 / 3 + 1 + 0) / 3)


# -- filter bank -----------------------------------------------------------------------------------


def make_bank(*counts: int) -> FilterBank:
    """Build a bank for two layers and three heads, with 3 x 3 filters and keys of width 8."""
    bank = FilterBank(2, 3, 3, 8)
    for number, count in enumerate(counts):
        bank.grow(count, torch.Generator().manual_seed(number))
    return bank


def test_grouped_convolution_matches_loops_over_filters() -> None:
    """Compute every element as a plain sum: 4 rows of 3 heads x 5 from embeddings of 6 x 7."""
    bank = make_bank(2, 1)
    embedding = torch.randn(2, 2, 3, 6, 7, generator=torch.Generator().manual_seed(9))
    weight, bias = bank.weight(), bank.bias()
    expected = torch.zeros(2, 3, 2, 4, 15)
    for layer in range(2):
        for part in range(2):
            for head in range(3):
                for number in range(3):
                    for row in range(4):
                        for column in range(5):
                            window = embedding[layer, part, head, row : row + 3, column : column + 3]
                            value = (window * weight[number, layer, part, head]).sum() + bias[number, layer, part, head]
                            expected[layer, number, part, row, head * 5 + column] = value.detach()
    torch.testing.assert_close(bank(embedding), expected)


def test_grow_freezes_existing_filters() -> None:
    bank = make_bank(2)
    weight, keys = bank.weight.newest.detach().clone(), bank.keys.newest.detach().clone()
    bank.grow(3, torch.Generator().manual_seed(5))
    assert torch.equal(bank.weight.earlier, weight)
    assert torch.equal(bank.keys()[:2], keys)
    assert {name: tuple(p.shape) for name, p in bank.named_parameters()} == {
        "weight.newest": (3, 2, 2, 3, 3, 3),
        "bias.newest": (3, 2, 2, 3),
        "keys.newest": (3, 8),
    }


def test_new_keys_are_orthogonal_to_all_others() -> None:
    bank = make_bank(2)
    bank.keys.newest.data.normal_(generator=torch.Generator().manual_seed(0))  # trained keys: neither unit nor orthogonal
    bank.grow(3, torch.Generator().manual_seed(1))
    expected = torch.cat([torch.zeros(3, 2), torch.eye(3)], dim=1)
    torch.testing.assert_close(bank.keys.newest @ bank.keys().T, expected, rtol=0, atol=1e-5)


def test_filters_are_initialized_as_in_conv2d() -> None:
    bank = make_bank(20)
    for rows in (bank.weight, bank.bias):
        assert 0.3 < float(rows.newest.detach().abs().max()) <= 1 / 3  # nine inputs each
