"""Exported models give the labels and scores of the original: every method, any size and number of images."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT, square
from numpy.typing import NDArray
from PIL import Image

from caprompt import ContinualClassifier, __version__, protocols
from caprompt.data.images import decode
from caprompt.errors import InputError, OptionError
from caprompt.export import export_onnx
from caprompt.export.onnx_graph import DEFAULT_OPSET, NEWEST_OPSET, OUTPUTS, compute_unknown_scores, encode_onnx
from caprompt.methods import list_methods
from caprompt.methods.base import MethodOutput

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

Teach = Callable[..., ContinualClassifier]
NOT_EXPORTED = {"mos"}
COLORS = ("red", "blue", "green", "cyan", "white")
SIZES = ((16, 16), (20, 31), (70, 40), (64, 64), (130, 200))


class Session:
    """A file in ONNX Runtime."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.session = onnxruntime.InferenceSession(content)

    def run(self, *images: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
        """Return the outputs for a batch by name."""
        return dict(zip(OUTPUTS, self.session.run(None, {"images": np.stack(images)}), strict=True))


def predict(model: ContinualClassifier, *images: Any, **options: Any) -> dict[str, NDArray[np.float32]]:
    """Return what a model predicts, as the outputs of a graph."""
    predictions = model.predict(list(images), top=len(model.classes), **options)
    rows = [{each.label: each.score for each in prediction.top} for prediction in predictions]
    scores = np.array([[row[name] for name in model.labels] for row in rows], np.float32)
    weights = np.array([prediction.task_weights for prediction in predictions], np.float32)
    return {"scores": scores, "task_weights": weights, "unknown": 1 - scores.max(axis=1)}


def assert_agree(session: Session, model: ContinualClassifier, images: list[NDArray[np.uint8]], **options: Any) -> None:
    found, expected = session.run(*images), predict(model, *images, **options)
    np.testing.assert_array_equal(found["scores"].argmax(axis=1), expected["scores"].argmax(axis=1))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)
    logits = torch.from_numpy(found["logits"])
    np.testing.assert_allclose(logits.softmax(dim=1), found["scores"], atol=1e-6)


def make_batch(count: int, height: int, width: int) -> list[NDArray[np.uint8]]:
    return [square(color, 100 + number, max(height, width))[:height, :width] for number, color in enumerate(COLORS[:count])]


@pytest.fixture(scope="module")
def session(ncm: ContinualClassifier) -> Session:
    return Session(encode_onnx(ncm))


# -- agreement -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_any_number_of_images_of_any_size(session: Session, ncm: ContinualClassifier, height: int, width: int, count: int) -> None:
    assert_agree(session, ncm, make_batch(count, height, width))


def test_files_of_every_kind(session: Session, ncm: ContinualClassifier, photos: Path) -> None:
    paths = sorted(photos.rglob("*.*"))
    assert len(paths) == 8
    expected = predict(ncm, *paths)["scores"]
    found = np.concatenate([session.run(decode(path))["scores"] for path in paths])
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(list_methods().keys() - NOT_EXPORTED))
def test_every_method(method: str, teach: Teach, photos: Path) -> None:
    model = teach(method)
    session = Session(encode_onnx(model))
    for count, (height, width) in zip((1, 2, 5, 1, 5), SIZES, strict=True):
        assert_agree(session, model, make_batch(count, height, width))
    for path in sorted(photos.rglob("*.*")):
        assert_agree(session, model, [decode(path)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"classifier": "aligned"},
        {"cycles": 1},
        {"aggregation": False, "classifier": "aligned"},
        {"first_pass": "query", "cycles": 3},
        {"test_crop": 1.0, "normalise": "cifar100"},
        {"precision": "bf16"},
    ],
)
def test_variants_of_caprompt(options: dict[str, Any], teach: Teach) -> None:
    model = teach("caprompt", **options)
    # Scores of a model in half precision differ from those of its float32 export by their own rounding.
    exact = {"precision": "fp32"} if "precision" in options else {}
    assert_agree(Session(encode_onnx(model)), model, make_batch(5, 40, 30), **exact)


def test_joined_and_calibrated_classes(teach: Teach) -> None:
    model = teach("ncm")
    model.join(["red", "white"], into="warm")
    model.rename("blue", "sky")
    images = [square(color, seed) for color in ("green", "cyan", "yellow") for seed in range(200, 212)]
    model.calibrate((images, ["green"] * 12 + ["cyan"] * 12 + ["yellow"] * 12))
    session = Session(encode_onnx(model))
    assert json.loads(read_metadata(session)["classes"]) == model.classes
    assert_agree(session, model, make_batch(5, 20, 20))
    assert_agree(session, model, make_batch(1, 20, 20))


@pytest.mark.parametrize(("weights", "bound"), [("fp16", 2e-3), ("int8", 0.1)])
def test_weights_in_fewer_bits(session: Session, ncm: ContinualClassifier, weights: Any, bound: float) -> None:
    smaller = Session(encode_onnx(ncm, weights=weights))
    assert len(smaller.content) < len(session.content)
    assert read_metadata(smaller)["weights"] == weights
    images = make_batch(5, 33, 44)
    difference = np.abs(smaller.run(*images)["scores"] - predict(ncm, *images)["scores"]).max()
    assert 0 < difference < bound


# -- the file ------------------------------------------------------------------------------------------------------------------


def read_metadata(session: Session) -> dict[str, str]:
    return dict(session.session.get_modelmeta().custom_metadata_map)


def test_inputs_outputs_and_metadata(session: Session, ncm: ContinualClassifier) -> None:
    (images,) = session.session.get_inputs()
    assert (images.name, images.type, images.shape) == ("images", "tensor(uint8)", ["batch", "height", "width", 3])
    assert tuple(each.name for each in session.session.get_outputs()) == OUTPUTS
    metadata = read_metadata(session)
    assert json.loads(metadata.pop("classes")) == ["green", "red", "blue", "cyan", "yellow", "white"]
    assert json.loads(metadata.pop("tasks")) == ncm.tasks
    assert metadata == {
        "caprompt_version": __version__,
        "method": "ncm",
        "backbone": ncm.backbone.name,
        "backbone_sha256": ncm.backbone.sha256,
        "protocol": protocols.HONEST,
        "weights": "fp32",
    }


def test_file_names_no_path_of_this_machine(session: Session) -> None:
    assert str(ROOT).encode() not in session.content
    assert b"site-packages" not in session.content
    assert b".py" not in session.content


def test_export_is_deterministic(session: Session, ncm: ContinualClassifier) -> None:
    assert encode_onnx(ncm) == session.content


@pytest.mark.slow
def test_unknown_score_is_computed_in_one_place(ncm: ContinualClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[2.0, 2.0], [50.0, 0.0]])
    output = MethodOutput(logits, torch.ones(2, 1), torch.ones(2))
    torch.testing.assert_close(compute_unknown_scores(output), torch.tensor([0.5, 0.0]))
    monkeypatch.setattr("caprompt.export.onnx_graph.compute_unknown_scores", lambda output: output.logits.amax(dim=1))
    found = Session(encode_onnx(ncm)).run(*make_batch(2, 20, 20))
    np.testing.assert_allclose(found["unknown"], found["logits"].max(axis=1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [21, 23])
def test_newer_operators(ncm: ContinualClassifier, opset: int) -> None:
    content = encode_onnx(ncm, opset=opset)
    assert {each.version for each in onnx.load_from_string(content).opset_import if each.domain == ""} == {opset}
    assert_agree(Session(content), ncm, make_batch(2, 20, 30))


# -- bad input -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opset", "age"), [(17, "old"), (24, "new")])
def test_other_opsets_are_refused(ncm: ContinualClassifier, tmp_path: Path, opset: int, age: str) -> None:
    with pytest.raises(OptionError, match=f"opset {opset} is too {age}; use one from {DEFAULT_OPSET} to {NEWEST_OPSET}"):
        export_onnx(ncm, tmp_path / "ncm.onnx", opset=opset)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", sorted(NOT_EXPORTED))
def test_methods_without_a_fixed_graph_are_refused(teach: Teach, tmp_path: Path, method: str) -> None:
    with pytest.raises(InputError, match=f"the method '{method}' cannot be exported: it runs as many forward passes as each image"):
        export_onnx(teach(method), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_options_without_a_fixed_graph_are_refused(teach: Teach) -> None:
    model = teach("caprompt", cycles="auto")
    with pytest.raises(InputError, match=r"cannot be exported with cycles=auto.*give their number with cycles=\.\.\."):
        encode_onnx(model)
    assert_agree(Session(encode_onnx(model, cycles=1)), model, make_batch(2, 20, 20), cycles=1)
    leaking = teach("caprompt", protocol="released", classifier="aligned")
    with pytest.raises(InputError, match="protocol=released a prediction depends on the other images"):
        encode_onnx(leaking)


def test_untaught_model_is_refused(backbone: Path) -> None:
    with pytest.raises(InputError, match="has not learned any class yet"):
        encode_onnx(ContinualClassifier("ncm", backbone, device="cpu"))


def test_existing_output_is_refused(ncm: ContinualClassifier, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already; choose another name"):
        export_onnx(ncm, path)
    assert path.read_bytes() == b"mine"


def test_missing_packages_are_named(ncm: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caprompt.export.onnx_graph.PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(InputError, match=r"needs the package no_such_package; install the extra: pip install 'caprompt\[export\]'"):
        export_onnx(ncm, tmp_path / "model.onnx")


# -- the page ------------------------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "export.md"


def test_page_lists_every_method() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = {row[1].strip(" `"): row[2].strip() for row in rows}
    for name in list_methods():
        assert listed[name] == ("no" if name in NOT_EXPORTED else "yes"), name


def test_page_shows_the_table_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "export_accuracy.py"))
    results = json.loads((ROOT / "results" / "accuracy" / "export.json").read_text(encoding="utf-8"))
    assert benchmark["format_table"](results["rows"]) in PAGE.read_text(encoding="utf-8")
    exported = {row["method"] for row in results["rows"] if row["weights"] == "fp32"}
    assert exported == list_methods().keys() - NOT_EXPORTED
    assert min(row["same_label_percent"] for row in results["rows"] if row["weights"] == "fp32") >= 99.9


def test_example_of_the_page_runs(
    ncm: ContinualClassifier, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (*_, example) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "pets.onnx").write_bytes(session.content)
    Image.fromarray(square("blue", 77)).save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    label, score = capsys.readouterr().out.split()
    prediction = ncm.predict_one(tmp_path / "cat.jpg")
    assert (label, float(score)) == (prediction.label, pytest.approx(prediction.score, abs=1e-4))


def test_an_old_torch_is_refused(ncm: ContinualClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.1+cpu")
    with pytest.raises(InputError, match=r"export needs torch 2\.7, not 2\.6\.1\+cpu; install the extra"):
        export_onnx(ncm, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
