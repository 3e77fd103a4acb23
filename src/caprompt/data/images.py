"""One picture, however it is stored, as upright 8-bit RGB pixels."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from caprompt.errors import DataError

__all__ = ["ADVICE", "IMAGE_SUFFIXES", "MAX_PIXELS", "ImageInput", "Pixels", "decode", "hash_image"]

ImageInput: TypeAlias = Path | Image.Image | NDArray[Any]
Pixels: TypeAlias = NDArray[np.uint8]

IMAGE_SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
MAX_PIXELS = 89_478_485  # Pillow's own default; ours, so that a program that lifts Pillow's limit does not lift this
MAX_ELONGATION = 200  # a 1 x 100,000 strip resized to a short side of 256 would need 20 GB
ADVICE = "; remove it, or go on without it with --skip-bad"


def decode(picture: ImageInput, shrink_to: int | None = None) -> Pixels:
    """The picture as (H, W, 3); one whose short side exceeds `shrink_to` is reduced to that short side.

    Rotated as its EXIF block says, transparency laid over white, 16-bit greys scaled to 8 bits, first frame of many.
    The result may share memory with an array passed in: do not write into it.

    >>> decode(np.array([[0, 65535]], dtype=np.uint16)).tolist()
    [[[0, 0, 0], [255, 255, 255]]]
    """
    try:
        if isinstance(picture, np.ndarray):
            return _from_array(picture, shrink_to)
        if isinstance(picture, Image.Image):
            return _from_image(picture, shrink_to)
        return _from_file(picture, shrink_to)
    except FileNotFoundError:
        raise DataError(f"there is no image file {_describe(picture)}{ADVICE}") from None
    except Exception as error:  # on a damaged file Pillow raises whatever its parser stumbled over
        raise DataError(f"{_describe(picture)} is not a readable image ({_reason(error)}){ADVICE}") from error


def hash_image(picture: ImageInput) -> bytes:
    """A hash of the picture's content: of the file's bytes for a path, of the pixels otherwise.

    >>> black, white = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    >>> hash_image(black) == hash_image(black.copy()), hash_image(black) == hash_image(white)
    (True, False)
    """
    if isinstance(picture, Path):
        try:
            return hashlib.sha256(picture.read_bytes()).digest()
        except OSError as error:
            raise DataError(f"{_describe(picture)} cannot be read ({_reason(error)}){ADVICE}") from error
    pixels = picture if isinstance(picture, np.ndarray) else decode(picture)
    return hashlib.sha256(f"{pixels.dtype.str}{pixels.shape}".encode() + pixels.tobytes()).digest()


def _from_file(path: Path, shrink_to: int | None) -> Pixels:
    with Image.open(path) as image:
        _check_size(*image.size)
        if shrink_to is not None:
            # JPEG can be decoded at 1/2, 1/4 or 1/8; twice the wanted size leaves the quality to the resize.
            image.draft(None, (2 * shrink_to, 2 * shrink_to))
        return _from_image(image, shrink_to)


def _from_image(image: Image.Image, shrink_to: int | None) -> Pixels:
    _check_size(*image.size)
    image.load()  # before the EXIF block is read, so that only EXIF trouble is forgiven there
    return np.asarray(_shrunk(_rgb(_upright(image)), shrink_to))


def _from_array(array: NDArray[Any], shrink_to: int | None) -> Pixels:
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ValueError("an array must be (height, width) or (height, width, channels) with 1, 3 or 4 channels")
    height, width = array.shape[:2]
    _check_size(width, height)
    values = _eight_bit(array)
    if values.shape[2:] == (3,) and (shrink_to is None or min(height, width) <= shrink_to):
        return values
    image = Image.fromarray(values[:, :, 0] if values.shape[2:] == (1,) else values)
    return np.asarray(_shrunk(_rgb(image), shrink_to))


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Image.DecompressionBombError
    if max(width, height) > MAX_ELONGATION * min(width, height):
        raise ValueError(f"{width} x {height} pixels: one side is over {MAX_ELONGATION} times the other")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block tells no rotation, but the pixels are there
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I":  # 32-bit, but what files keep in it are 16-bit greys
        return _rgb(Image.fromarray(_eight_bit(np.asarray(image).clip(0, 65535).astype(np.uint16))))
    if image.mode == "F" or image.mode.startswith("I;16"):
        return _rgb(Image.fromarray(_eight_bit(np.asarray(image))))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _shrunk(image: Image.Image, short_side: int | None) -> Image.Image:
    short = min(image.size)
    if short_side is None or short <= short_side:
        return image
    width, height = (round(side * short_side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _eight_bit(values: NDArray[Any]) -> Pixels:
    """Whole 16-bit numbers by their full range, floats by 0..1."""
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "u" and width == 1:
        return values
    if kind == "u" and width == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    if kind != "f":
        raise ValueError(f"values of type {values.dtype}; turn them into uint8, uint16 or floats in 0..1")
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1):  # also true of NaN
        raise ValueError(f"floats from {low:g} to {high:g}; they must lie in 0..1")
    return (values * 255).round().astype(np.uint8)


def _describe(picture: ImageInput) -> str:
    if isinstance(picture, np.ndarray):
        return f"an array of shape {picture.shape} and type {picture.dtype}"
    return f"'{picture}'" if isinstance(picture, Path) else f"a Pillow image of mode {picture.mode}, size {picture.size}"


def _reason(error: Exception) -> str:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"a possible decompression bomb: more than {MAX_PIXELS // 10**6} million pixels"
    if isinstance(error, UnidentifiedImageError):
        return "its content is in no known image format"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
