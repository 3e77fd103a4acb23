"""Models saved by version 0.1.0, before the package was restructured, load, predict the same bits, and can be resumed.

`tests/fixtures/models` has a model of every method of that version after two tasks, and the checkpoint of a third call that was
stopped in its second epoch. `expected.json` has the predictions of version 0.1.0, before and after resuming that call.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import squares

from caprompt import ContinualClassifier
from caprompt.methods import list_methods

MODELS = Path(__file__).parent / "fixtures" / "models"
BACKBONE = MODELS / "tiny.safetensors"
ADDED_SINCE = {"moal", "mos", "ridge", "tuna"}  # methods that version 0.1.0 did not have
EXPECTED: dict[str, Any] = json.loads((MODELS / "expected.json").read_text(encoding="utf-8"))
# Another CPU or torch version may sum matmuls in another order, which changes the last bits.
SAME_KERNELS = (torch.__version__, torch.backends.cpu.get_cpu_capability()) == (EXPECTED["torch"], EXPECTED["cpu"])


@pytest.fixture(autouse=True)
def _predict_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict images together, as version 0.1.0 did; alone, as they are predicted now, they have other last bits."""
    monkeypatch.setattr("caprompt.engine.inference.predict_separately", lambda method, *inputs: method.predict(*inputs))


def predict(model: ContinualClassifier) -> list[dict[str, Any]]:
    """Return predictions with what version 0.1.0 had of them."""
    images, _ = squares(("red", "green", "blue", "yellow"), each=2, start=50)
    predictions = [prediction.as_dict() for prediction in model.predict(images, top=9)]
    fields = ("label", "score", "top", "task_weights", "passes")
    return json.loads(json.dumps([{name: prediction[name] for name in fields} for prediction in predictions]))


def assert_equal(predictions: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    if SAME_KERNELS:
        assert predictions == expected
        return
    for prediction, reference in zip(predictions, expected, strict=True):
        assert prediction["score"] == pytest.approx(reference["score"], abs=1e-4)
        assert prediction["task_weights"] == pytest.approx(reference["task_weights"], abs=1e-4)


def test_every_method_has_a_saved_model() -> None:
    assert list_methods().keys() - ADDED_SINCE <= EXPECTED["models"].keys()


@pytest.mark.parametrize("name", EXPECTED["models"])
def test_saved_model_predicts_the_same_bits(name: str) -> None:
    model = ContinualClassifier.load(MODELS / name, backbone=BACKBONE, device="cpu")
    assert_equal(predict(model), EXPECTED["models"][name]["predictions"])


@pytest.mark.parametrize("name", [name for name, model in EXPECTED["models"].items() if model["stopped"]])
def test_stopped_call_is_resumed_to_the_same_model(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(MODELS / name, tmp_path / name)
    model = ContinualClassifier.load(folder, backbone=BACKBONE, device="cpu")
    model.learn(squares(("yellow", "cyan")), checkpoint_dir=folder, resume=True)
    assert_equal(predict(model), EXPECTED["models"][name]["resumed"])
    if SAME_KERNELS:
        state_hash = hashlib.sha256((folder / "state.safetensors").read_bytes()).hexdigest()
        assert state_hash == EXPECTED["models"][name]["resumed_state_sha256"]
