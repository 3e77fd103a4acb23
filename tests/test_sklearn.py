from __future__ import annotations

import pickle
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, equal_tensors, quick_options, square, squares, write_squares
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from caprompt import ContinualClassifier, InputError, load_backbone
from caprompt.errors import DataError, OptionError
from caprompt.sklearn import FeatureExtractor, IncrementalRidgeClassifier

# -- the classifier --------------------------------------------------------------------------------------------------------


@parametrize_with_checks([IncrementalRidgeClassifier(projections=200)])
def test_classifier_passes_the_checks_of_scikit_learn(estimator: IncrementalRidgeClassifier, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    return load_digits(return_X_y=True)  # type: ignore[no-any-return]


def test_learning_class_by_class_equals_learning_at_once(digits: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
    X, y = digits
    at_once = IncrementalRidgeClassifier(projections=300).fit(X[:1200], y[:1200])
    step_by_step = IncrementalRidgeClassifier(projections=300)
    for names in ([7, 3], [0, 1, 2], [9, 8, 4], [5, 6]):
        rows = np.isin(y[:1200], names)
        step_by_step.partial_fit(X[:1200][rows], y[:1200][rows])
    assert step_by_step.classes_.tolist() == list(range(10))
    np.testing.assert_allclose(step_by_step.predict_proba(X[1200:]), at_once.predict_proba(X[1200:]), atol=1e-9)
    assert at_once.score(X[1200:], y[1200:]) > 0.93


def test_later_samples_of_known_classes_are_added(digits: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
    X, y = digits
    model = IncrementalRidgeClassifier(projections=100).fit(X[:100], y[:100])
    model.partial_fit(X[100:600], y[100:600])
    expected = IncrementalRidgeClassifier(projections=100).fit(X[:600], y[:600])
    np.testing.assert_allclose(model.decision_function(X[600:]), expected.decision_function(X[600:]), atol=1e-9)
    model.fit(X[:100], y[:100])  # from scratch
    np.testing.assert_allclose(
        model.decision_function(X[600:]),
        IncrementalRidgeClassifier(projections=100).fit(X[:100], y[:100]).decision_function(X[600:]),
    )


def test_probabilities_are_in_the_order_of_the_classes() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8)) + 4 * np.eye(8)[np.arange(60) % 3]
    y = np.array(["fox", "ant", "owl"])[np.arange(60) % 3]
    model = IncrementalRidgeClassifier(projections=50)
    for name in ("owl", "ant", "fox"):
        model.partial_fit(X[y == name], y[y == name])
    assert model.classes_.tolist() == ["ant", "fox", "owl"]
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(X)).all()
    assert model.score(X, y) > 0.9


def test_classes_may_be_named_in_advance() -> None:
    X = np.eye(4)
    model = IncrementalRidgeClassifier(projections=20).partial_fit(X[:2], [1, 2], classes=[1, 2, 3])
    assert model.classes_.tolist() == [1, 2, 3]
    assert model.predict_proba(X).shape == (4, 3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"projections": 0}, "projections must be a positive integer, not 0"),
        ({"alpha": 0}, "alpha must be a positive number, not 0"),
        ({"scale": "big"}, "scale must be a positive number, not 'big'"),
    ],
)
def test_invalid_parameters_raise_one_sentence(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IncrementalRidgeClassifier(**parameters).fit(np.eye(2), [0, 1])  # type: ignore[arg-type]


def test_labels_of_two_types_are_refused() -> None:
    model = IncrementalRidgeClassifier(projections=20).fit(np.eye(2), [0, 1])
    with pytest.raises(InputError, match="numbers in one call and text in another"):
        model.partial_fit(np.eye(2), ["a", "b"])


# -- the feature extractor -------------------------------------------------------------------------------------------------


def test_extractor_passes_the_checks_that_need_no_table(backbone: Path) -> None:
    """`check_estimator` gives tables of numbers to an estimator, so for one of images it checks little: the rest is below."""
    extractor = FeatureExtractor(str(backbone))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        assert {check["status"] for check in check_estimator(extractor)} == {"passed"}
    for name in (
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_mixin_order",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
    ):
        subject = extractor if name not in ("check_parameters_default_constructible",) else FeatureExtractor()
        getattr(estimator_checks, name)("FeatureExtractor", subject)


def test_fitting_changes_no_parameter_and_returns_the_estimator(backbone: Path) -> None:
    extractor = FeatureExtractor(backbone, batch_size=2)
    before = extractor.get_params()
    images, labels = squares(["red", "green"])
    assert extractor.fit(images, labels) is extractor
    assert extractor.get_params() == before
    assert extractor.fit().n_features_out_ == 32
    assert clone(extractor).get_params() == before
    with pytest.raises(NotFittedError):
        clone(extractor).transform(images)


def test_transform_is_repeatable_and_leaves_images_and_estimator_unchanged(backbone: Path) -> None:
    images, _ = squares(["red", "green"])
    copies = [image.copy() for image in images]
    extractor = FeatureExtractor(backbone).fit()
    state = dict(vars(extractor))
    features = extractor.transform(images)
    assert (features.shape, features.dtype) == ((10, 32), np.float32)
    assert vars(extractor) == state
    assert all((image == copy).all() for image, copy in zip(images, copies, strict=True))
    np.testing.assert_array_equal(extractor.transform(images), features)
    np.testing.assert_array_equal(FeatureExtractor(backbone).fit_transform(images), features)


def test_a_feature_does_not_depend_on_order_or_number_of_images(backbone: Path) -> None:
    images, _ = squares(["red", "green"])
    extractor = FeatureExtractor(backbone).fit()
    features = extractor.transform(images)
    np.testing.assert_allclose(extractor.transform(images[::-1])[::-1], features, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([extractor.transform([image]) for image in images]), features, atol=1e-5)
    np.testing.assert_allclose(FeatureExtractor(backbone, batch_size=3).fit_transform(images), features, atol=1e-5)
    assert extractor.transform([]).shape == (0, 32)


def test_pickled_extractor_loads_its_network_again(backbone: Path) -> None:
    images, _ = squares(["red"])
    extractor = FeatureExtractor(str(backbone)).fit()
    content = pickle.dumps(extractor)
    assert len(content) < 2000
    np.testing.assert_array_equal(pickle.loads(content).transform(images), extractor.transform(images))


def test_names_of_features_and_tables_of_pandas(backbone: Path) -> None:
    extractor = FeatureExtractor(backbone).fit()
    assert extractor.get_feature_names_out()[:2].tolist() == ["featureextractor0", "featureextractor1"]
    table = extractor.set_output(transform="pandas").transform(squares(["red"])[0])
    assert table.shape == (5, 32)


def test_images_are_taken_in_all_forms(backbone: Path, tmp_path: Path) -> None:
    images, _ = squares(["red"], each=3)
    folder = write_squares(tmp_path, ["red"], each=3)
    paths = sorted(folder.rglob("*.png"))
    extractor = FeatureExtractor(load_backbone(backbone)).fit()
    expected = extractor.transform(images)
    tensors = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    for source in (
        folder,
        paths,
        np.array([str(path) for path in paths]),
        np.stack(images),
        tensors,
        [Image.fromarray(each) for each in images],
    ):
        np.testing.assert_array_equal(extractor.transform(source), expected)
    with pytest.raises(DataError, match="image 0 is a NoneType"):
        extractor.transform([None])
    with pytest.raises(DataError, match=r"there is no image file 'gone\.png'; leave it out"):
        extractor.transform(["gone.png"])


@pytest.mark.parametrize("method", ["caprompt", "l2p", "inflora", "ranpac"])
def test_features_of_a_model_are_those_that_it_classifies(method: str, backbone: Path, tmp_path: Path) -> None:
    model = ContinualClassifier(method, backbone, **quick_options(method))  # type: ignore[arg-type]
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    images, _ = squares(["red", "green", "blue"], each=2, start=30)
    features = FeatureExtractor(model=model).fit_transform(images)
    model.save(tmp_path / "m")
    extractor = FeatureExtractor(model=tmp_path / "m").fit()
    np.testing.assert_array_equal(extractor.transform(images), features)
    np.testing.assert_allclose(np.concatenate([extractor.transform([image]) for image in images]), features, atol=1e-5)
    plain = FeatureExtractor(backbone).fit_transform(images)
    assert np.abs(features - plain).max() > 1e-3
    head = getattr(model.method, "ridge", None) or model.method.head
    logits = head(torch.from_numpy(features))
    labels = [prediction.label for prediction in model.predict(images)]
    assert [model.classes[index] for index in logits.argmax(dim=1).tolist()] == labels


def test_features_of_a_model_that_reads_several_blocks(backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, readout_blocks=2, **quick_options("caprompt"))  # type: ignore[arg-type]
    model.learn(squares(["red", "green"]))
    extractor, (images, _) = FeatureExtractor(model=model), squares(["red", "green"], each=2, start=30)
    features = extractor.fit_transform(images)
    assert features.shape == (4, 2 * 32)
    assert len(extractor.get_feature_names_out()) == 2 * 32
    labels = [model.classes[index] for index in model.method.ridge(torch.from_numpy(features)).argmax(dim=1).tolist()]
    assert labels == [prediction.label for prediction in model.predict(images)]


def test_extracting_features_leaves_the_model_as_it_was(backbone: Path) -> None:
    model = ContinualClassifier("caprompt", backbone, **{**quick_options("caprompt"), "cycles": "auto"})  # type: ignore[arg-type]
    model.learn(squares(["red", "green"]))
    model.learn(squares(["blue"]))
    before, prediction = dict(model.method.state()), model.predict_one(square("red", 9))
    assert FeatureExtractor(model=model).fit_transform(squares(["red"])[0]).shape == (5, 32)
    assert equal_tensors(before, model.method.state())
    assert model.predict_one(square("red", 9)) == prediction
    assert model.method.options.cycles == "auto"  # type: ignore[attr-defined]


def test_models_without_features_of_their_own_are_refused(backbone: Path) -> None:
    with pytest.raises(
        InputError, match="has not learned any class yet, so it has no features of its own; give a backbone instead"
    ):
        FeatureExtractor(model=ContinualClassifier("ncm", backbone)).fit()
    model = ContinualClassifier("ease", backbone, **quick_options("ease"))  # type: ignore[arg-type]
    model.learn(squares(["red"]))
    with pytest.raises(InputError, match="method 'ease' does not classify by one feature vector; give a backbone instead"):
        FeatureExtractor(model=model).fit_transform(squares(["red"])[0])


# -- both together ---------------------------------------------------------------------------------------------------------


def make_pipeline_of(backbone: Path) -> Pipeline:
    return make_pipeline(FeatureExtractor(str(backbone)), IncrementalRidgeClassifier(projections=50))


def test_pipeline_learns_images(backbone: Path) -> None:
    model = make_pipeline_of(backbone).fit(*squares(["red", "green", "blue"], each=8))
    images, labels = squares(["red", "green", "blue"], start=40)
    assert model.score(images, labels) > 0.8
    assert model.predict(images[:2]).tolist() == ["red", "red"]
    assert model.predict_proba(images).shape == (15, 3)


def test_grid_search_and_cross_validation(backbone: Path) -> None:
    images, labels = squares(["red", "green"], each=6)
    grid = {"incrementalridgeclassifier__alpha": [0.01, 0.1], "incrementalridgeclassifier__projections": [20, 40]}
    search = GridSearchCV(make_pipeline_of(backbone), grid, cv=3).fit(images, labels)
    assert search.best_score_ > 0.8
    assert search.predict(squares(["green"], start=30)[0]).tolist() == ["green"] * 5
    assert len(cross_val_score(make_pipeline_of(backbone), np.stack(images), labels, cv=3)) == 3


@pytest.mark.slow
def test_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "incremental_features.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["2 classes", "3 classes", "6 classes"]
    assert all(float(line.split()[3]) > 80 for line in lines)
