from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.image_inputs import convert_image, is_one_image
from caprompt.data.images import decode, hash_image
from caprompt.errors import DataError

Noise = Callable[..., NDArray[np.uint8]]


def encode(pixels: NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def test_all_forms_of_an_image_decode_to_the_same_pixels(tmp_path: Path, noise: Noise) -> None:
    pixels = noise()
    content = encode(pixels)
    path = tmp_path / "a.png"
    path.write_bytes(content)
    tensor = torch.from_numpy(pixels)
    forms: list[Any] = [path, str(path), pixels, Image.fromarray(pixels), tensor, tensor.permute(2, 0, 1), tensor / 255]
    forms += [(tensor / 255).permute(2, 0, 1).requires_grad_(), (tensor / 255).double().permute(2, 0, 1)]
    forms += [content, bytearray(content), memoryview(content), io.BytesIO(content), {"bytes": content, "path": None}]
    forms += [{"bytes": None, "path": str(path)}, Image.open(path)]
    for form in forms:
        np.testing.assert_array_equal(decode(convert_image(form, "the image")), pixels)


def test_half_precision_and_gray_tensors(noise: Noise) -> None:
    tensor = torch.from_numpy(noise()).permute(2, 0, 1) / 255
    for dtype in (torch.float16, torch.bfloat16):
        assert np.abs(decode(convert_image(tensor.to(dtype), "x")).astype(int) - noise()).max() <= 1
    gray = torch.from_numpy(noise()[:, :, 0])
    for form in (gray, gray.unsqueeze(0), gray.unsqueeze(2)):
        np.testing.assert_array_equal(decode(convert_image(form, "x"))[:, :, 0], gray.numpy())


def test_open_files_are_read_from_their_start_and_streams_as_they_are(noise: Noise) -> None:
    class Stream:
        def __init__(self, content: bytes) -> None:
            self.read = io.BytesIO(content).read

    file = io.BytesIO(encode(noise()))
    file.read()
    np.testing.assert_array_equal(decode(convert_image(file, "x")), noise())
    np.testing.assert_array_equal(decode(convert_image(Stream(encode(noise())), "x")), noise())


def test_file_that_was_opened_but_not_read_is_closed_and_taken_by_its_path(tmp_path: Path, noise: Noise) -> None:
    """Thousands of opened images would exceed the number of files that a process may have open."""
    Image.fromarray(noise()).save(tmp_path / "a.png")
    assert convert_image(Image.open(tmp_path / "a.png"), "x") == tmp_path / "a.png"
    changed = Image.open(tmp_path / "a.png").rotate(90, expand=True)
    assert convert_image(changed, "x") is changed
    loaded = Image.open(tmp_path / "a.png")
    loaded.load()
    assert convert_image(loaded, "x") is loaded


def test_encoded_image_is_hashed_like_its_file(tmp_path: Path, noise: Noise) -> None:
    (tmp_path / "a.png").write_bytes(encode(noise()))
    image = convert_image(encode(noise()), "x")
    assert isinstance(image, EncodedImage)
    assert hash_image(image) == hash_image(tmp_path / "a.png")


def test_encoded_image_is_read_at_every_use_and_not_stored(noise: Noise) -> None:
    reads: list[int] = []

    def read() -> bytes:
        reads.append(1)
        return encode(noise())

    image = EncodedImage(read)
    assert not reads
    decode(image)
    decode(image, shrink_to=8)
    assert len(reads) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            None,
            "image 3 is a NoneType; give a path, a Pillow image, an array or tensor, the bytes of an image file, or an open file",
        ),
        (3.5, "image 3 is a float"),
        (torch.zeros(2, 3, 8, 8), r"tensor of shape \(2, 3, 8, 8\); give the images of a batch one by one"),
        (torch.zeros(8), r"tensor of shape \(8,\); an image has two or three axes"),
        (io.StringIO("text"), "image 3 is a file that was opened as text; open it with mode 'rb'"),
        ({"bytes": None, "path": None}, "image 3 is empty"),
        ({"cat": 1}, "image 3 is a dict"),
    ],
)
def test_invalid_images_raise_one_sentence(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        convert_image(value, "image 3")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"no image", "an image file of 8 bytes in memory is not a readable image"),
        (b"", "an image file of 0 bytes in memory is not a readable image"),
        (torch.full((3, 8, 8), -2.0), "floats from -2 to -2; they must be in 0..1"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "values of type int64; convert them to uint8"),
    ],
)
def test_unreadable_images_raise_when_they_are_decoded(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(convert_image(value, "x"))


def test_single_images_are_told_from_sequences() -> None:
    single = [np.zeros((8, 8)), np.zeros((8, 8, 3)), torch.zeros(3, 8, 8), torch.zeros(8, 8, 3), Image.new("RGB", (8, 8)), b"x"]
    several = [np.zeros((5, 8, 8)), np.zeros((2, 8, 8, 3)), torch.zeros(2, 3, 8, 8), torch.zeros(5, 8, 8), [b"x"], "a.png", ()]
    assert all(map(is_one_image, [*single, io.BytesIO(b"x")]))
    assert not any(map(is_one_image, several))
