from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers import TINY, equal_tensors, squares, tiny_vit
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm

from caprompt import ContinualClassifier
from caprompt.backbones.vit import ViT, ViTConfig
from caprompt.engine.trainer import fit
from caprompt.errors import DataError, OptionError
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
    method = ConvPrompt(tiny_vit(), ConvPromptOptions(**{"length": 4, "filters": 2, "kernel": 3, **options}))  # type: ignore[arg-type]
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


def test_keys_stay_bit_identical_in_training() -> None:
    method = make_method((2, 3), epochs=2, learning_rate=0.05)
    keys, filters = method.bank.keys().clone(), method.bank.weight.newest.detach().clone()
    torch.testing.assert_close(keys @ keys.T, torch.eye(4))
    fit(method, lambda epoch: [(IMAGES, LABELS)])
    assert torch.equal(method.bank.keys(), keys)
    assert not torch.equal(method.bank.weight.newest, filters)
    assert not any(name.startswith("bank.keys") for name, each in method.named_parameters() if each.requires_grad)
    method.begin_task(1, torch.Generator().manual_seed(9))
    assert torch.equal(method.bank.keys()[:4], keys)


def test_models_saved_before_these_options_keep_their_behavior() -> None:
    before = {"filter_growth": "constant", "filter_keys": "trained", "norms": "frozen"}
    assert ConvPromptOptions.complete_saved({}) == before
    assert all(getattr(ConvPromptOptions(), name) != value for name, value in before.items())


def test_only_keys_of_the_newest_task_are_trained() -> None:
    method = make_method(filter_keys="trained")
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


# -- number of filters -----------------------------------------------------------------------------


def test_similar_classes_need_fewer_filters() -> None:
    """Five filters, then ceil((1 - similarity) 5), with similarities of class means in the un-adapted backbone."""
    method, seen = make_method((), filters=5), []
    for number, brightness in enumerate((0.0, 0.0, 4.0)):  # the second task's images are those of the first
        method.begin_task(2, torch.Generator().manual_seed(number))
        images, labels = IMAGES[:4] + brightness, torch.tensor([0, 0, 1, 1]) + 2 * number
        method.prepare([(images[:3], labels[:3]), (images[3:], labels[3:])], torch.Generator())
        seen.append(torch.stack([method.vit(images[:2]).mean(dim=0), method.vit(images[2:]).mean(dim=0)]))
    cosines = cosine_similarity(seen[2].unsqueeze(1), torch.cat(seen[:2]).unsqueeze(0), dim=2)
    expected = math.ceil((1 - float(cosines.amax(dim=1).mean())) * 5)
    assert method.filter_counts.tolist() == [5, 1, expected]
    assert expected not in (1, 5), "the third task should be similar in part"
    total = 6 + expected
    assert [len(rows()) for rows in (method.bank.weight, method.bank.bias, method.bank.keys)] == [total] * 3
    assert method.logits(IMAGES).shape == (5, 6)
    restored = make_method((), filters=5)
    restored.restore([2, 2, 2], method.state())
    assert torch.equal(restored.logits(IMAGES), method.logits(IMAGES))


def test_further_images_of_known_classes_drop_no_filters() -> None:
    method = make_method((2, 3), filters=5)
    method.prepare([(IMAGES, LABELS)], torch.Generator())
    before = method.filter_counts.tolist()
    method.prepare([(IMAGES, LABELS)], torch.Generator())
    assert method.filter_counts.tolist() == before


def test_number_of_filters_can_be_constant() -> None:
    method = make_method((2, 3), filters=5, filter_growth="constant")
    method.prepare([(IMAGES, LABELS)], torch.Generator())
    assert method.filter_counts.tolist() == [5, 5]
    assert method.prototypes is None


@pytest.mark.parametrize("trains_keys", [False, True])
def test_dropped_filters_are_the_last_of_the_newest(trains_keys: bool) -> None:
    bank = make_bank(2, 3, trains_keys=trains_keys)
    before = [rows().detach().clone() for rows in (bank.weight, bank.bias, bank.keys)]
    bank.drop_newest(2)
    for rows, kept in zip((bank.weight, bank.bias, bank.keys), before, strict=True):
        assert torch.equal(rows(), kept[:3])
    assert len(bank.weight.newest) == 1


# -- norms -----------------------------------------------------------------------------------------


def test_features_are_those_of_a_backbone_with_the_trained_norms() -> None:
    method = make_method()
    assert method.norms is not None
    torch.testing.assert_close(method.logits(IMAGES), make_method(norms="frozen").logits(IMAGES))  # the same at first
    method.norms.change.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(3))
    changed, expected = dict(method.vit.named_parameters()), make_method(norms="frozen")
    values = method.norms(torch.float32)
    assert values.keys() == {name for name in changed if "norm" in name}
    for name, value in values.items():
        difference = (value - changed[name]).detach()
        assert 0 < float(difference.abs().max()) < 0.01  # 0.005 x change in the second task
        expected.vit.get_parameter(name).data.copy_(value)
    torch.testing.assert_close(method.logits(IMAGES), expected.logits(IMAGES))


def test_norms_of_the_backbone_itself_are_not_trained() -> None:
    method = make_method((2,), epochs=2, learning_rate=0.05)
    before = {name: value.clone() for name, value in method.vit.state_dict().items()}
    fit(method, lambda epoch: [(IMAGES, LABELS % 2)])
    assert equal_tensors(method.vit.state_dict(), before)
    assert method.norms is not None
    assert method.norms.change.abs().amax(dim=2).min() > 0, "the weight and the bias of every norm should be trained"


def test_norms_change_slowly_after_the_first_task() -> None:
    """The first step of Adam moves every value by the learning rate, here by 0.005 of it."""
    for tasks, expected in (((2,), 0.01), ((2, 3), 0.01 * 0.005)):
        method = make_method(tasks, epochs=1, learning_rate=0.01, clip=0, schedule="constant")
        assert method.norms is not None
        before = method.norms(torch.float32)["blocks.0.norm1.weight"].detach().clone()
        fit(method, lambda epoch: [(IMAGES[:4], LABELS[:4] if method.num_known_classes else LABELS[:4] % 2)])  # noqa: B023
        after = method.norms(torch.float32)["blocks.0.norm1.weight"].detach()
        assert float((after - before).abs().median()) == pytest.approx(expected, rel=0.05)


def test_next_task_starts_from_the_trained_norms() -> None:
    method = make_method((2,))
    assert method.norms is not None
    method.norms.change.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(3))
    before = method.norms(torch.float32)
    method.begin_task(1, torch.Generator().manual_seed(1))
    assert equal_tensors(method.norms(torch.float32), before)
    assert not method.norms.change.any()


def test_trained_norms_cannot_be_recomputed() -> None:
    with pytest.raises(OptionError, match="recompute=true needs norms='frozen'"):
        make_method(recompute=True)
    make_method(recompute=True, norms="frozen")


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


def make_bank(*counts: int, trains_keys: bool = True) -> FilterBank:
    """Build a bank for two layers and three heads, with 3 x 3 filters and keys of width 8."""
    bank = FilterBank(2, 3, 3, 8, trains_keys)
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
