"""JPEG files decoded by simplejpeg and by Pillow: the same pixels, and the same outcome for whatever is odd or damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from caprompt.data import images, jpeg
from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import decode
from caprompt.errors import DataError

pytest.importorskip("simplejpeg", reason="the extra 'fast' is not installed")


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Make an image of smooth colors and some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8))


def encode(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def decode_both(content: bytes, shrink_to: int | None = None) -> tuple[NDArray[np.uint8] | str, NDArray[np.uint8] | str]:
    """Return the pixels, or what the error says, with and without simplejpeg."""
    outcomes = []
    for decoder in (jpeg.get_decoder, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(images, "get_decoder", decoder)
            try:
                outcomes.append(decode(EncodedImage(lambda: content), shrink_to))
            except DataError as error:
                outcomes.append(str(error))
    return outcomes[0], outcomes[1]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which every attempt at the fast path adds whether it gave pixels."""
    attempts: list[bool] = []
    original = images._decode_plain_jpeg

    def record(content: bytes, shrink_to: int | None) -> Any:
        pixels = original(content, shrink_to)
        attempts.append(pixels is not None)
        return pixels

    monkeypatch.setattr(images, "_decode_plain_jpeg", record)
    return attempts


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_pixels_are_those_of_pillow(taken: list[bool], mode: str, progressive: bool, subsampling: int) -> None:
    for (width, height), quality in (((1, 1), 75), ((7, 5), 30), ((101, 203), 90), ((300, 260), 100)):
        content = encode(
            photo(height, width, quality).convert(mode), quality=quality, subsampling=subsampling, progressive=progressive
        )
        for shrink_to in (None, 128, 64, 32):  # the last file is decoded at its size, a half, a quarter and an eighth
            fast, pillow = decode_both(content, shrink_to)
            assert isinstance(fast, np.ndarray)
            assert isinstance(pillow, np.ndarray)
            assert fast.shape == pillow.shape
            assert np.abs(fast.astype(int) - pillow).max() <= 1
    assert len(taken) == 16
    assert all(taken)


@pytest.mark.parametrize(("short_side", "reduction"), [(63, 1), (64, 2), (127, 2), (128, 4), (255, 4), (256, 8), (900, 8)])
def test_a_file_is_decoded_at_the_least_size_that_is_enough(tmp_path: Path, short_side: int, reduction: int) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(photo(short_side, short_side + 9)))
    file = images.read_jpeg(tmp_path / "a.jpg", shrink_to=32)
    assert file is not None
    assert file.reduction == reduction


def test_decoding_at_a_fraction_hardly_changes_the_input_of_the_network() -> None:
    content = encode(photo(192, 256).resize((1024, 768), Image.Resampling.BICUBIC), quality=92)
    views = []
    for shrink_to in (None, 384):
        pixels = decode(EncodedImage(lambda: content), shrink_to)
        views.append(np.asarray(Image.fromarray(pixels).resize((128, 96), Image.Resampling.LANCZOS)).astype(int))
    assert np.abs(views[0] - views[1]).max() <= 3


def with_exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(photo(20, 30), exif=exif)


def with_xmp(xmp: bytes) -> bytes:
    """Return a file with XMP data, which older versions of Pillow do not write."""
    content, body = encode(photo(20, 30), icc_profile=b"none", comment="a"), b"http://ns.adobe.com/xap/1.0/\0" + xmp
    return content[:2] + b"\xff\xe1" + (2 + len(body)).to_bytes(2, "big") + body + content[2:]


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
ODD = {
    "rotated": with_exif(6),
    "rotated by XMP": with_xmp(XMP),
    "damaged EXIF": encode(photo(20, 30), exif=b"Exif\0\0no TIFF"),
    "CMYK": encode(photo(20, 30).convert("CMYK")),
    "RGB": encode(photo(20, 30), keep_rgb=True),
    "long": encode(photo(2, 500)),
    "no JPEG": b"\xff\xd8\xffno JPEG\xff\xd9",
    "empty": b"",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_left_to_pillow(taken: list[bool], name: str) -> None:
    fast, pillow = decode_both(ODD[name])
    assert not any(taken)
    np.testing.assert_array_equal(fast, pillow)


@pytest.mark.parametrize("content", [with_exif(1), with_xmp(b"<x/>")])
def test_usual_segments_are_no_obstacle(taken: list[bool], content: bytes) -> None:
    np.testing.assert_array_equal(*decode_both(content))
    assert taken == [True]


def test_damaged_files_have_the_same_outcome() -> None:
    content = encode(photo(24, 40), quality=80)
    rng = np.random.default_rng(0)
    damaged = [content[:length] for length in range(0, len(content), 7)]
    for _ in range(150):
        changed = bytearray(content)
        for position in rng.integers(0, len(content), 3):
            changed[position] = rng.integers(0, 256)
        damaged.append(bytes(changed))
    outcomes = [decode_both(each) for each in damaged]
    for fast, pillow in outcomes:
        assert isinstance(fast, str) == isinstance(pillow, str)
        np.testing.assert_array_equal(fast, pillow)
    assert 50 < sum(isinstance(fast, str) for fast, _ in outcomes) < len(outcomes)


def test_files_are_taken_by_name_and_size(tmp_path: Path, taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(photo(20, 30))
    for name in ("a.jpg", "b.JPEG", "c.png"):
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(decode(tmp_path / name), np.asarray(Image.open(io.BytesIO(content))))
    assert taken == [True, True]
    monkeypatch.setattr(images, "READ_BYTES", 100)  # so that the file counts as a long one
    np.testing.assert_array_equal(decode(tmp_path / "a.jpg"), decode(tmp_path / "c.png"))
    assert taken == [True] * 3
    monkeypatch.setattr(images, "MAX_JPEG_BYTES", len(content) - 1)
    decode(tmp_path / "a.jpg")
    assert taken == [True] * 3


def without_jfif(content: bytes) -> bytes:
    """Return a file that Pillow wrote without its first segment."""
    return content[:2] + content[4 + int.from_bytes(content[4:6], "big") :]


@pytest.mark.parametrize(
    ("content", "is_known"),
    [
        (encode(photo(20, 30)), True),
        (encode(photo(20, 30).convert("L")), True),
        (without_jfif(encode(photo(20, 30).convert("L"))), True),
        (without_jfif(encode(photo(20, 30))), False),
        (encode(photo(20, 30), keep_rgb=True), False),
    ],
)
def test_colors_are_known_where_the_decoder_would_say_the_same(content: bytes, is_known: bool) -> None:
    header, decoder = jpeg.read_header(content), jpeg.get_decoder()
    assert header is not None
    assert decoder is not None
    assert header.has_known_colors == is_known
    assert not is_known or decoder.decode_jpeg_header(content)[2] in ("YCbCr", "Gray")
    np.testing.assert_array_equal(*decode_both(content))


def test_a_decoder_of_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    original = jpeg._decode
    monkeypatch.setattr(jpeg, "_decode", lambda *arguments: original(*arguments) ^ 2)
    assert jpeg.get_decoder.__wrapped__() is None
    monkeypatch.undo()
    assert jpeg.get_decoder.__wrapped__() is not None


def test_without_the_extra_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    assert jpeg.get_decoder.__wrapped__() is None


def test_large_files_share_the_memory_of_all_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[int] = []
    original = images._budget.reserve

    def record(num_bytes: int) -> Any:
        reserved.append(num_bytes)
        return original(num_bytes)

    monkeypatch.setattr(images._budget, "reserve", record)
    decode(EncodedImage(lambda: encode(photo(100, 200), progressive=True)))
    assert reserved == [(8 + 6) * 100 * 200]
