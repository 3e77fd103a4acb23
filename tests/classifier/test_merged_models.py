from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import COLORS, squares, tiny_vit, write_backbone
from numpy.typing import NDArray

from caprompt import ContinualClassifier, calibration
from caprompt.classifier.merged_models import merge, merge_models
from caprompt.errors import CapromptWarning, InputError

Images = tuple[list[NDArray[np.uint8]], list[str]]
NAMES = list(COLORS)[:4]
METHODS: dict[str, dict[str, Any]] = {
    "ridge": {"projections": 60},
    "ncm": {},
    "ranpac": {"projections": 60, "adapt_first": False, "ridge_selection": "sums"},
}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone") / "tiny.safetensors")


def teach(backbone: Path, method: str, *lessons: Images, **options: Any) -> ContinualClassifier:
    model = ContinualClassifier(method, backbone, device="cpu", **{**METHODS.get(method, {}), **options})
    for lesson in lessons:
        model.learn(lesson)
    return model


def divide(images: Images, shards: int, seed: int) -> list[Images]:
    """Divide shuffled images into shards."""
    order = np.random.default_rng(seed).permutation(len(images[1]))
    return [([images[0][i] for i in part], [images[1][i] for i in part]) for part in np.array_split(order, shards)]


def get_weights(model: ContinualClassifier) -> torch.Tensor:
    """Return the rows of the classifier in the order of the names."""
    head = model.method.head
    rows = head.statistics.mean if model.method.name == "ncm" else head.ridge.weight
    return rows[[model.classes.index(name) for name in sorted(model.classes)]]


def assert_same_model(one: ContinualClassifier, other: ContinualClassifier, images: Sequence[NDArray[np.uint8]]) -> None:
    """Compare lambda, weights to 1e-10 and all labels."""
    if one.method.name != "ncm":
        assert one.method.head.ridge.strength == pytest.approx(other.method.head.ridge.strength, rel=1e-10)
    weights, expected = get_weights(one), get_weights(other)
    assert float((weights - expected).abs().max() / expected.abs().max()) < 1e-10
    assert [each.label for each in one.predict(images)] == [each.label for each in other.predict(images)]
    assert one.images_seen == {name: other.images_seen[name] for name in one.classes}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_classes_divided_into_shards_in_any_order_give_the_same_model(backbone: Path, method: str) -> None:
    """Every class is split over 1, 2 and 7 shards, taught one after another or apart and merged; 2,000 images are predicted."""
    lesson, test = squares(NAMES, each=15), squares(NAMES, each=500, start=1000)[0]
    expected = teach(backbone, method, lesson)
    for shards in (2, 7):
        parts = divide(lesson, shards, seed=shards)
        assert_same_model(teach(backbone, method, *parts), expected, test)
        models = {str(number): teach(backbone, method, part) for number, part in enumerate(parts)}
        assert_same_model(merge_models(models), expected, test)
        assert_same_model(merge_models(dict(reversed(models.items()))), expected, test)


@pytest.mark.parametrize("method", METHODS)
def test_models_of_different_classes_are_merged_and_learn_on(backbone: Path, method: str) -> None:
    first, second, third = (squares(names, each=6, start=start) for names, start in ((NAMES[:2], 0), (NAMES[1:], 50), (NAMES, 80)))
    north, south = teach(backbone, method, first), teach(backbone, method, second)
    merged, expected = merge_models({"north": north, "south": south}), teach(backbone, method, first, second)
    assert merged.tasks == expected.tasks
    assert_same_model(merged, expected, squares(NAMES, each=20, start=500)[0])
    for model in (merged, expected):
        model.learn(third)
    assert_same_model(merged, expected, squares(NAMES, each=20, start=500)[0])
    with pytest.raises(InputError, match="all 12 images were learned before"):
        merged.learn(first)
    assert merged.num_calls == 3
    assert [lesson["kind"] for lesson in merged.lessons] == ["learn", "learn", "merge", "learn"]


def test_kept_features_of_several_models_are_merged(backbone: Path) -> None:
    first, second = squares(NAMES[:2], each=6), squares(NAMES[1:], each=6, start=50)
    models = {name: teach(backbone, "ridge", lesson, keep_features=True) for name, lesson in (("a", first), ("b", second))}
    merged = merge_models(models)
    assert_same_model(merged, teach(backbone, "ridge", first, second), squares(NAMES, each=20, start=500)[0])
    merged.forget(NAMES[0])
    rest = ([image for image, label in zip(*first, strict=True) if label == NAMES[1]], [NAMES[1]] * 6)
    assert_same_model(merged, teach(backbone, "ridge", rest, second), squares(NAMES, each=20, start=500)[0])


def test_calibration_is_fitted_to_the_evidence_of_all_models(backbone: Path) -> None:
    lesson = squares(NAMES, each=12)
    models = {str(number): teach(backbone, "ridge", part) for number, part in enumerate(divide(lesson, 3, seed=0))}
    merged, reversed_order = merge_models(models), merge_models(dict(reversed(models.items())))
    assert merged.calibration.images == 48 == sum(model.calibration.images for model in models.values())
    assert merged.calibration.factor == reversed_order.calibration.factor
    assert merged.calibration.quantiles == pytest.approx(reversed_order.calibration.quantiles)


def test_model_without_its_evidence_is_told(backbone: Path) -> None:
    """As are those of a version whose evidence is of another kind."""
    models = {name: teach(backbone, "ridge", part) for name, part in zip("ab", divide(squares(NAMES, each=8), 2, 0), strict=True)}
    models["b"].evidence = []
    with pytest.warns(CapromptWarning, match="what 'b' was calibrated with is not in its folder.*; .* 'caprompt calibrate'"):
        merged = merge_models(models)
    assert merged.calibration.images == models["a"].calibration.images == 16


@pytest.mark.parametrize("needed", [10, 200])
def test_evidence_of_a_base_counts_while_a_model_needs_it(
    backbone: Path, tmp_path: Path, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "ENOUGH", needed)
    teach(backbone, "ridge", squares(NAMES, each=4)).save(tmp_path / "base")
    models = {name: ContinualClassifier.load(tmp_path / "base", device="cpu") for name in "ab"}
    for model, start in zip(models.values(), (50, 80), strict=True):
        model.learn(squares(NAMES, each=3, start=start))
        assert sum(each.images for each in model.evidence) == (12 if needed == 10 else 28)
    merged = merge_models(models, ContinualClassifier.load(tmp_path / "base", device="cpu"))
    assert merged.calibration.images == (24 if needed == 10 else 40)


@pytest.mark.parametrize("name", ["ranpac", "caprompt"])
def test_models_that_share_a_trained_first_task_are_merged(
    backbone: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RanPAC with an adapter may learn new classes after it, CAPrompt further images; what the first images selected stays."""
    monkeypatch.setattr("caprompt.methods.caprompt.classifier.SMALL_SHARE", 10.0)  # whole images
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "projections": 60, "exact_sums": True}
    options |= {"adapt_first": True, "bottleneck": 4} if name == "ranpac" else {"length": 4, "epochs": 2}
    names = NAMES if name == "ranpac" else NAMES[:2]
    base = teach(backbone, name, squares(NAMES[:2], each=6), **options)
    base.save(tmp_path / "base")
    lessons = [squares(names, each=5, start=start) for start in (50, 80)]
    for folder, lesson in zip(("a", "b"), lessons, strict=True):
        shutil.copytree(tmp_path / "base", tmp_path / folder)
        ContinualClassifier.load(tmp_path / folder, device="cpu").learn(lesson, checkpoint_dir=tmp_path / folder)
    shutil.copytree(tmp_path / "base", tmp_path / "all")
    expected = ContinualClassifier.load(tmp_path / "all", device="cpu")
    expected.method.options = expected.method.options.model_copy(update=expected.method.merged_options)
    for lesson in lessons:
        expected.learn(lesson)
    if name == "ranpac":  # its lambda follows from the sums once it is merged
        ridge = expected.method.head.ridge
        ridge.relative_strength = 0.03
        ridge.register_buffer("count", torch.tensor(sum(expected.images_seen.values())))
        ridge.solve()
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(InputError, match=r"12 image\(s\) of .* as well and would count twice; .*base=\.\.\."):
        merge(folders, tmp_path / "c")
    merged = merge(folders, tmp_path / "c", base=tmp_path / "base", device="cpu")
    assert merged.method.input_options.eval_crop == base.method.input_options.eval_crop == (0.875 if name == "ranpac" else 1.0)
    test = squares(names, each=30, start=500)[0]
    assert [each.label for each in merged.predict(test)] == [each.label for each in expected.predict(test)]
    assert merged.images_seen == expected.images_seen
    ridges = [model.method.head.ridge if name == "ranpac" else model.method.ridge.ridge for model in (merged, expected)]
    largest = float(ridges[1].weight.abs().max())
    # CAPrompt computes features in batches, whose rounding depends on their size.
    tolerance = 1e-10 if name == "ranpac" else 1e-4
    torch.testing.assert_close(ridges[0].weight, ridges[1].weight, rtol=0, atol=tolerance * largest)
    again = ContinualClassifier.load(tmp_path / "c", device="cpu")
    assert [each.label for each in again.predict(test)] == [each.label for each in merged.predict(test)]


def test_unlike_models_are_refused_with_the_reason(backbone: Path, tmp_path: Path) -> None:
    first, second = squares(NAMES[:2], each=4), squares(NAMES[2:], each=4, start=50)
    ridge = teach(backbone, "ridge", first)

    def refuse(other: ContinualClassifier, reason: str, **arguments: Any) -> None:
        with pytest.raises(InputError, match=reason):
            merge_models({"a": ridge, "b": other}, **arguments)

    refuse(teach(backbone, "ncm", second), r"^'a' and 'b' cannot be merged: their methods differ \(ridge and ncm\)$")
    refuse(teach(backbone, "ridge", second, projections=50), r"option 'projections' differs \(60 and 50\)")
    refuse(teach(backbone, "ridge", second, ridge_scale=5.0), r"option 'ridge_scale' differs \(20.0 and 5.0\)")
    refuse(teach(backbone, "ridge", first), r"8 image\(s\) of 'b' were learned by 'a' as well")
    refuse(teach(backbone, "linear", second, epochs=1), "'linear' trains parameters on every task")
    refuse(ContinualClassifier("ridge", backbone, projections=60, device="cpu"), "it has not learned any class yet")
    seeded = ContinualClassifier("ridge", backbone, seed=1, projections=60, device="cpu")
    seeded.learn(second)
    refuse(seeded, "their random projections differ; make them with the same seed")
    other_backbone = write_backbone(tmp_path / "other.safetensors", tiny_vit(seed=1))
    refuse(teach(other_backbone, "ridge", second), "their backbones differ")
    joined = teach(backbone, "ridge", second)
    joined.join(NAMES[2:], "both")
    refuse(joined, "classes of it were joined")
    numbers = teach(backbone, "ridge", (second[0], [0] * 4 + [1] * 4))  # type: ignore[arg-type]
    texts = teach(backbone, "ridge", (first[0], ["0"] * 4 + ["1"] * 4))
    with pytest.raises(InputError, match="the class '[01]' is an integer in one and a text in the other"):
        merge_models({"a": texts, "b": numbers})
    refuse(teach(backbone, "ridge", second), "'b' was not taught from a copy of the base", base=ridge)


def test_models_with_several_prompts_are_refused(backbone: Path) -> None:
    options = {"epochs": 1, "batch_size": 8, "length": 4, "projections": 60}
    models = {name: teach(backbone, "caprompt", squares(NAMES[:2], each=3), squares(NAMES[2:], each=3), **options) for name in "ab"}
    with pytest.raises(InputError, match="'a' cannot be merged: it has trained prompts for 2 tasks"):
        merge_models(models)


def test_merging_needs_two_models_and_a_new_folder(backbone: Path, tmp_path: Path) -> None:
    teach(backbone, "ncm", squares(NAMES[:2], each=2)).save(tmp_path / "a")
    teach(backbone, "ncm", squares(NAMES[2:], each=2)).save(tmp_path / "b")
    with pytest.raises(InputError, match="two or more different models"):
        merge([tmp_path / "a", tmp_path / "." / "a"], tmp_path / "c")
    with pytest.raises(InputError, match="holds a model already"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "b")
    assert not (tmp_path / "c").exists()
