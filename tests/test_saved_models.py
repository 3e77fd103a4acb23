"""Models saved by version 0.1.0, before the package was restructured, load, predict the same bits, and can be resumed.

`tests/fixtures/models` has a model of every method of that version after two tasks, and the checkpoint of a third call that was
stopped in its second epoch. `expected.json` has the predictions of version 0.1.0, before and after resuming that call.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import squares
from torch import Tensor

from caprompt import ContinualClassifier
from caprompt.backbones.vit import ViTConfig
from caprompt.engine.inputs import InputPipeline
from caprompt.methods import list_methods
from caprompt.utils.threads import use_threads

MODELS = Path(__file__).parent / "fixtures" / "models"
BACKBONE = MODELS / "tiny.safetensors"
ADDED_SINCE = {"moal", "mos", "ridge", "tuna"}  # methods that version 0.1.0 did not have
EXPECTED: dict[str, Any] = json.loads((MODELS / "expected.json").read_text(encoding="utf-8"))
IMAGES, _ = squares(("red", "green", "blue", "yellow"), each=2, start=50)


@pytest.fixture(autouse=True)
def _predict_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict images together, as version 0.1.0 did; alone, as they are predicted now, they have other last bits."""
    monkeypatch.setattr("caprompt.engine.inference.predict_separately", lambda method, *inputs: method.predict(*inputs))


def predict(model: ContinualClassifier) -> list[dict[str, Any]]:
    """Return predictions with what version 0.1.0 had of them."""
    predictions = [prediction.as_dict() for prediction in model.predict(IMAGES, top=9)]
    fields = ("label", "score", "top", "task_weights", "passes")
    return json.loads(json.dumps([{name: prediction[name] for name in fields} for prediction in predictions]))


def compute_class_tokens(weights: dict[str, Tensor], config: ViTConfig, images: Tensor) -> Tensor:
    """Compute the features of images by PyTorch's functions alone, in the order of version 0.1.0: (B, 3, S, S) -> (B, D)."""
    width, side = config.width, config.patch_size
    patches = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, 3, rows, side, columns, side)
    patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
    tokens = F.linear(patches, weights["patch_embed.proj.weight"].flatten(1), weights["patch_embed.proj.bias"])
    x = torch.cat([weights["cls_token"].expand(len(images), -1, -1), tokens], dim=1) + weights["pos_embed"]
    for layer in range(config.depth):
        parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        norm1, qkv, proj, norm2, fc1, fc2 = (
            [weights[f"blocks.{layer}.{part}.{kind}"] for kind in ("weight", "bias")] for part in parts
        )
        normed = F.layer_norm(x, (width,), *norm1, config.norm_eps)
        if layer < config.depth - 1:
            query, key, value = F.linear(normed, *qkv).chunk(3, dim=2)
        else:  # the last block computes the class token alone
            query = F.linear(normed[:, :1], *(rows[:width] for rows in qkv))
            key, value = F.linear(normed, *(rows[width:] for rows in qkv)).chunk(2, dim=2)
            x = x[:, :1]
        heads = (rows.unflatten(2, (config.heads, -1)).transpose(1, 2) for rows in (query, key, value))
        x = x + F.linear(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2), *proj)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (width,), *norm2, config.norm_eps), *fc1)), *fc2)
    return F.layer_norm(x, (width,), weights["norm.weight"], weights["norm.bias"], config.norm_eps)[:, 0]


@cache
def compute_linear_scores() -> list[list[float]]:
    """Compute the scores of the linear classifier from its saved weights by PyTorch's functions alone, highest first."""
    model = ContinualClassifier.load(MODELS / "linear", backbone=BACKBONE, device="cpu")
    (images,) = InputPipeline(model.backbone, model.device).eval_images(IMAGES, model.method.input_options)
    state = {name.removeprefix("vit."): tensor for name, tensor in model.method.state_dict().items()}
    with torch.inference_mode():
        features = compute_class_tokens(state, model.backbone.config, images)
        scores = F.linear(features, state["head.weight"], state["head.bias"]).softmax(dim=1)  # (B, C)
    return scores.sort(dim=1, descending=True).values.tolist()


def list_scores(predictions: list[dict[str, Any]]) -> list[list[float]]:
    return [[each["score"] for each in prediction["top"]] for prediction in predictions]


def has_recorded_forward() -> bool:
    """Whether PyTorch's forward kernels have the bits of those that the predictions were recorded with.

    They depend on the version of PyTorch and on the CPU, and the instructions that a CPU has do not tell which are chosen.
    """
    return compute_linear_scores() == list_scores(EXPECTED["models"]["linear"]["predictions"])


def has_recorded_training() -> bool:
    """Whether training has the recorded bits, too: the plain network has no backward pass, so the versions must be the same."""
    recorded = (EXPECTED["torch"], EXPECTED["cpu"])
    return has_recorded_forward() and (torch.__version__, torch.backends.cpu.get_cpu_capability()) == recorded


def assert_equal(predictions: list[dict[str, Any]], expected: list[dict[str, Any]], same_bits: bool) -> None:
    if same_bits:
        assert predictions == expected
        return
    for prediction, reference in zip(predictions, expected, strict=True):
        assert prediction["score"] == pytest.approx(reference["score"], abs=1e-5)
        assert prediction["task_weights"] == pytest.approx(reference["task_weights"], abs=1e-5)


def test_plain_network_tells_which_kernels_there_are() -> None:
    """What decides whether bits are compared must have those of the package, or it would decide by something else than kernels."""
    model = ContinualClassifier.load(MODELS / "linear", backbone=BACKBONE, device="cpu")
    with use_threads(1):  # the package computes a part of the batch in each of several threads
        assert list_scores(predict(model)) == compute_linear_scores.__wrapped__()


def test_every_method_has_a_saved_model() -> None:
    assert list_methods().keys() - ADDED_SINCE <= EXPECTED["models"].keys()


@pytest.mark.parametrize("name", EXPECTED["models"])
def test_saved_model_predicts_the_same_bits(name: str) -> None:
    model = ContinualClassifier.load(MODELS / name, backbone=BACKBONE, device="cpu")
    assert_equal(predict(model), EXPECTED["models"][name]["predictions"], has_recorded_forward())


@pytest.mark.parametrize("name", [name for name, model in EXPECTED["models"].items() if model["stopped"]])
def test_stopped_call_is_resumed_to_the_same_model(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(MODELS / name, tmp_path / name)
    model = ContinualClassifier.load(folder, backbone=BACKBONE, device="cpu")
    model.learn(squares(("yellow", "cyan")), checkpoint_dir=folder, resume=True)
    assert_equal(predict(model), EXPECTED["models"][name]["resumed"], has_recorded_training())
    if has_recorded_training():
        state_hash = hashlib.sha256((folder / "state.safetensors").read_bytes()).hexdigest()
        assert state_hash == EXPECTED["models"][name]["resumed_state_sha256"]
