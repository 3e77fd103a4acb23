"""The graph gives the pixels that Pillow gives, at any size, and their normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from caprompt.data.images import decode
from caprompt.data.transforms import EvalTransform, render
from caprompt.export import preprocessing
from caprompt.export.preprocessing import add_preprocessing

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

SIZE, SHRINK_TO = 32, 128
SIZES = [(32, 32), (20, 27), (31, 100), (128, 128), (128, 300), (129, 150), (240, 320), (500, 333), (1, 9)]
TALL = [(90, 40), (200, 61), (700, 90), (600, 129), (900, 300)]
LEVEL = 1 / 255


def make_session(transform: EvalTransform, opset: int = 18) -> Any:
    """Return a session of a network that returns its input."""
    helper = onnx.helper
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3, SIZE, SIZE]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "network", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    add_preprocessing(model, transform, SHRINK_TO)
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString())


def make_image(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Return noise or, more demanding for a resize, blocks of black and white with sharp edges."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    blocks = rng.integers(0, 2, (height // 5 + 1, width // 5 + 1, 3), dtype=np.uint8) * 255
    return np.asarray(Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST))


def render_with_pillow(image: NDArray[np.uint8], transform: EvalTransform) -> NDArray[np.float32]:
    shrunk = decode(image, SHRINK_TO)
    return render(shrunk, transform.make_view(shrunk.shape[1], shrunk.shape[0]), transform)


PLAIN = EvalTransform(SIZE, (0, 0, 0), (1, 1, 1), resize=37)


@pytest.fixture(scope="module")
def session() -> Any:
    return make_session(PLAIN)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("height", "width"), [*SIZES, *TALL])
def test_pixels_are_those_of_pillow(session: Any, height: int, width: int, seed: int) -> None:
    image = make_image(height, width, seed)
    (pixels,) = session.run(None, {"images": image[None]})[0]
    difference = np.abs(pixels - render_with_pillow(image, PLAIN)) / LEVEL
    assert difference.max() < 1.01
    assert (difference > 0.01).mean() < 1e-3  # nearly all are equal, and most often all


def test_batch_gives_what_each_image_gives(session: Any) -> None:
    images = np.stack([make_image(70, 50, seed) for seed in range(5)])
    batch = session.run(None, {"images": images})[0]
    assert batch.shape == (5, 3, SIZE, SIZE)
    for image, own in zip(images, batch, strict=True):
        np.testing.assert_array_equal(session.run(None, {"images": image[None]})[0][0], own)


@pytest.mark.parametrize("resize", [SIZE, 36, None])
def test_normalization_and_crop_follow_the_transform(resize: int | None) -> None:
    transform = EvalTransform(SIZE, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28), resize=resize)
    session = make_session(transform, opset=21)
    for height, width in ((50, 41), (333, 200)):
        image = make_image(height, width, seed=1)
        expected = render_with_pillow(image, transform)
        np.testing.assert_allclose(session.run(None, {"images": image[None]})[0][0], expected, atol=1e-6)


def test_order_of_older_versions_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before version 13, Pillow resized columns first; a transposed image shows the same on the installed version."""
    monkeypatch.setattr(preprocessing, "ROWS_MAY_BE_FIRST", False)
    session = make_session(PLAIN)
    tall, wide = make_image(300, 60, seed=0), make_image(60, 300, seed=0)
    assert np.abs(session.run(None, {"images": wide[None]})[0][0] - render_with_pillow(wide, PLAIN)).max() < 1.01 * LEVEL
    columns_first = _resize_columns_first(tall)
    (pixels,) = session.run(None, {"images": tall[None]})[0]
    assert np.abs(pixels - columns_first).max() < 1.01 * LEVEL


def _resize_columns_first(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Resize a tall image of a short side below `SHRINK_TO` along columns, then along rows, and crop it."""
    view = PLAIN.make_view(image.shape[1], image.shape[0])
    narrow = Image.fromarray(image).resize((view.resized[0], image.shape[0]), Image.Resampling.BICUBIC)
    resized = narrow.resize(view.resized, Image.Resampling.BICUBIC)
    x, y = view.corner
    cropped = np.asarray(resized.crop((x, y, x + SIZE, y + SIZE)))
    return cropped.transpose(2, 0, 1).astype(np.float32) / 255
