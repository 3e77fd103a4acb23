"""Weights in fewer bits are restored as closely as their bits allow, and nothing else of a graph changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caprompt.errors import OptionError
from caprompt.export.quantization import BLOCK, LEVELS, Weights, check_weights, quantize, store_weights

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

RNG = np.random.default_rng(0)
TENSORS = {
    "weight": RNG.normal(0, 0.05, (64, 48)).astype(np.float32),
    "odd": RNG.normal(0, 1, (7, 11, 37)).astype(np.float32),  # its size is no multiple of a block
    "tiny": RNG.normal(0, 1e-6, (50, 40)).astype(np.float32),  # below the normal range of float16
    "huge": RNG.normal(0, 1e6, (50, 40)).astype(np.float32),  # beyond it
    "zero": np.zeros((32, 64), np.float32),
    "bias": RNG.normal(0, 1, (4, 5)).astype(np.float32),
    "vector": RNG.normal(0, 1, 4096).astype(np.float32),
    "index": np.arange(2048).reshape(2, 1024),
}


def make_model() -> Any:
    """Return a graph that returns its constants."""
    helper = onnx.helper
    types = {np.dtype(np.float32): onnx.TensorProto.FLOAT, np.dtype(np.int64): onnx.TensorProto.INT64}
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in TENSORS],
        "constants",
        [],
        [helper.make_tensor_value_info(f"{name}_out", types[values.dtype], values.shape) for name, values in TENSORS.items()],
        [onnx.numpy_helper.from_array(values, name) for name, values in TENSORS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def restore(weights: Weights) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the tensors of a graph with such weights, and the size of its file."""
    model = make_model()
    store_weights(model, weights)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    return dict(zip(TENSORS, onnxruntime.InferenceSession(content).run(None, {}), strict=True)), len(content)


def count_bits(size: int) -> float:
    """Return the bits per stored weight in a file of this size."""
    large = sum(TENSORS[name].size for name in ("weight", "odd", "tiny", "huge", "zero"))
    return 32 - 8 * (len(make_model().SerializeToString()) - size) / large


def test_fp32_changes_nothing() -> None:
    model = make_model()
    store_weights(model, "fp32")
    assert model == make_model()


@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_small_tensors_and_integers_stay_exact(weights: Weights) -> None:
    restored, _ = restore(weights)
    for name in ("bias", "vector", "index", "zero"):
        np.testing.assert_array_equal(restored[name], TENSORS[name])


def test_fp16_has_eleven_bits_whatever_the_range() -> None:
    restored, size = restore("fp16")
    for name in ("weight", "odd", "tiny", "huge"):
        largest = np.abs(TENSORS[name]).max()
        np.testing.assert_allclose(restored[name], TENSORS[name], rtol=2**-11, atol=float(largest) * 2**-23)
    assert count_bits(size) < 16.5


def test_int8_is_within_half_a_step_of_its_block() -> None:
    restored, size = restore("int8")
    for name in ("weight", "odd", "tiny", "huge"):
        values, blocks = TENSORS[name].ravel(), np.arange(TENSORS[name].size) // BLOCK
        largest = np.zeros(blocks[-1] + 1)
        np.maximum.at(largest, blocks, np.abs(values))
        assert (np.abs(restored[name].ravel() - values) <= 0.501 * largest[blocks] / LEVELS).all()
        assert not np.array_equal(restored[name], TENSORS[name])
    assert count_bits(size) < 10.5  # eight, one of the scales, and the nodes of these small tensors


def test_quantized_blocks_use_all_levels() -> None:
    integers, scales = quantize(TENSORS["weight"])
    assert integers.shape == (64 * 48 // BLOCK, BLOCK)
    assert scales.shape == (len(integers), 1)
    assert (np.abs(integers).max(axis=1) == LEVELS).all()


def test_unknown_name_is_refused() -> None:
    check_weights("int8")
    with pytest.raises(OptionError, match="weights cannot be stored as 'int4'; there are: fp32, fp16, int8"):
        check_weights("int4")
