"""Decoding and hashing of single images; decoded images are upright 8-bit RGB."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from caprompt.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "MAX_PIXELS", "SKIP_HINT", "ImageInput", "Pixels", "decode", "hash_image"]

ImageInput: TypeAlias = Path | Image.Image | NDArray[Any]
Pixels: TypeAlias = NDArray[np.uint8]

IMAGE_SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
# Pillow tries every parser that it has whatever the file's name, and that of EPS starts Ghostscript.
FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 89_478_485  # Pillow's default; checked here as well, since an application may lift Pillow's limit
MAX_ASPECT = 200  # a 1 x 100,000 strip resized to a short side of 256 would need 20 GB
SKIP_HINT = "; remove it, or skip unreadable images with skip_bad=True"


def decode(image: ImageInput, shrink_to: int | None = None) -> Pixels:
    """Decode an image to (H, W, 3) uint8.

    An image whose short side exceeds `shrink_to` is reduced to that short side. The EXIF rotation
    is applied, transparency is composited over white, 16-bit grays are scaled to 8 bits, and of an
    animation the first frame is taken. The result may share memory with an array that was passed
    in: do not write into it.

    >>> decode(np.array([[0, 65535]], dtype=np.uint16)).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    try:
        if isinstance(image, np.ndarray):
            return _decode_array(image, shrink_to)
        if isinstance(image, Image.Image):
            return _decode_pillow(image, shrink_to)
        return _decode_file(image, shrink_to)
    except FileNotFoundError:
        raise DataError(f"there is no image file {_describe(image)}{SKIP_HINT}") from None
    except Exception as error:  # Pillow's parsers raise arbitrary exceptions on damaged files
        raise DataError(f"{_describe(image)} is not a readable image ({_describe_error(error)}){SKIP_HINT}") from error


def hash_image(image: ImageInput) -> bytes:
    """Hash an image's content: the file's bytes for a path, the pixels otherwise.

    >>> black, white = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    >>> hash_image(black) == hash_image(black.copy()), hash_image(black) == hash_image(white)
    (True, False)
    """
    if isinstance(image, Path):
        try:
            return hashlib.sha256(image.read_bytes()).digest()
        except OSError as error:
            raise DataError(f"{_describe(image)} cannot be read ({_describe_error(error)}){SKIP_HINT}") from error
    pixels = image if isinstance(image, np.ndarray) else decode(image)
    return hashlib.sha256(f"{pixels.dtype.str}{pixels.shape}".encode() + pixels.tobytes()).digest()


@cache
def _list_formats() -> tuple[str, ...]:
    """Return the formats that this Pillow can read: AVIF is not in every build."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _decode_file(path: Path, shrink_to: int | None) -> Pixels:
    with Image.open(path, formats=_list_formats()) as image:
        _check_size(*image.size)
        if shrink_to is not None:
            # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; from twice the final size, the
            # quality of the result still depends on the resize only.
            image.draft(None, (2 * shrink_to, 2 * shrink_to))
        return _decode_pillow(image, shrink_to)


def _decode_pillow(image: Image.Image, shrink_to: int | None) -> Pixels:
    _check_size(*image.size)
    image.load()  # before EXIF is read, so that only EXIF errors are ignored there
    return np.asarray(_shrink(_convert_to_rgb(_apply_rotation(image)), shrink_to))


def _decode_array(array: NDArray[Any], shrink_to: int | None) -> Pixels:
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ValueError("an array must be (height, width) or (height, width, channels) with 1, 3 or 4 channels")
    height, width = array.shape[:2]
    _check_size(width, height)
    values = _convert_to_uint8(array)
    if values.shape[2:] == (3,) and (shrink_to is None or min(height, width) <= shrink_to):
        return values
    image = Image.fromarray(values[:, :, 0] if values.shape[2:] == (1,) else values)
    return np.asarray(_shrink(_convert_to_rgb(image), shrink_to))


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ValueError(f"{width} x {height} pixels: one side is over {MAX_ASPECT} times the other")


def _apply_rotation(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # without valid EXIF data there is no rotation, but the pixels are fine
        return image


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I":  # 32-bit, but files store 16-bit grays in it
        return _convert_to_rgb(Image.fromarray(_convert_to_uint8(np.asarray(image).clip(0, 65535).astype(np.uint16))))
    if image.mode == "F" or image.mode.startswith("I;16"):
        return _convert_to_rgb(Image.fromarray(_convert_to_uint8(np.asarray(image))))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _shrink(image: Image.Image, short_side: int | None) -> Image.Image:
    short = min(image.size)
    if short_side is None or short <= short_side:
        return image
    width, height = (round(side * short_side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _convert_to_uint8(values: NDArray[Any]) -> Pixels:
    """Scale uint16 by its full range, floats from 0..1."""
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "u" and width == 1:
        return values
    if kind == "u" and width == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    if kind != "f":
        raise ValueError(f"values of type {values.dtype}; convert them to uint8, uint16 or floats in 0..1")
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # also true of NaN
        raise ValueError(f"floats from {low:g} to {high:g}; they must be in 0..1")
    return (values * 255).round().astype(np.uint8)


def _describe(image: ImageInput) -> str:
    if isinstance(image, np.ndarray):
        return f"an array of shape {image.shape} and type {image.dtype}"
    return f"'{image}'" if isinstance(image, Path) else f"a Pillow image of mode {image.mode}, size {image.size}"


def _describe_error(error: Exception) -> str:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"a possible decompression bomb: more than {MAX_PIXELS // 10**6} million pixels"
    if isinstance(error, UnidentifiedImageError):
        return "its content is in no known image format"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
