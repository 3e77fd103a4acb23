"""An exported model is compared with the original on the images of a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import write_squares

from caprompt import ContinualClassifier
from caprompt.errors import DataError
from caprompt.export import export_onnx, verify_onnx
from caprompt.export.verification import Agreement, compare_scores

pytest.importorskip("onnxscript", reason="onnxscript is not installed")


@pytest.fixture(scope="module")
def exported(ncm: ContinualClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "ncm.onnx"
    assert export_onnx(ncm, path).path == path
    return path


def test_labels_agree_and_accuracies_are_those_of_evaluate(ncm: ContinualClassifier, exported: Path, tmp_path: Path) -> None:
    write_squares(tmp_path, ["red", "blue", "white"], each=4, start=30)
    agreement = verify_onnx(ncm, exported, tmp_path)
    assert (agreement.images, agreement.labeled, agreement.same_label) == (12, 12, 12)
    assert agreement.agreement == 100
    assert agreement.largest_difference < 1e-5
    accuracy = ncm.evaluate(tmp_path).accuracy
    assert agreement.accuracies == (pytest.approx(accuracy), pytest.approx(accuracy))


def test_only_folders_named_like_classes_are_labels(ncm: ContinualClassifier, exported: Path, tmp_path: Path) -> None:
    write_squares(tmp_path, ["red", "black"], each=2, start=30)
    agreement = verify_onnx(ncm, exported, str(tmp_path))
    assert (agreement.images, agreement.labeled) == (4, 2)
    agreement = verify_onnx(ncm, exported.read_bytes(), tmp_path / "black")
    assert (agreement.images, agreement.labeled, agreement.accuracies) == (2, 0, None)
    assert len(agreement.describe()) == 2


def test_another_model_does_not_agree(ncm: ContinualClassifier, exported: Path, tmp_path: Path) -> None:
    other = ContinualClassifier("ncm", ncm.backbone, device="cpu")
    colors = ["white", "cyan", "yellow", "blue", "green", "red"]
    write_squares(tmp_path / "train", colors)
    other.learn(tmp_path / "train")  # names its outputs in another order
    write_squares(tmp_path / "test", colors, start=30)
    agreement = verify_onnx(other, exported, tmp_path / "test")
    assert agreement.agreement < 50
    assert agreement.largest_difference > 0.1
    assert agreement.accuracies is not None
    assert agreement.accuracies[0] > agreement.accuracies[1]


def test_comparison_of_scores() -> None:
    originals = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], np.float32)
    exported = np.array([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8]], np.float32)
    agreement = compare_scores(originals, exported, np.array([0, 1, -1]))
    assert agreement == Agreement(3, 2, pytest.approx(0.2), labeled=2, correct=1, exported_correct=2)


def test_folder_without_images_is_refused(ncm: ContinualClassifier, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        verify_onnx(ncm, exported, tmp_path / "nowhere")
    with pytest.raises(DataError, match="there is no image in the folder"):
        verify_onnx(ncm, exported, tmp_path)
