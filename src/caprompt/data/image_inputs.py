"""Conversion of what a caller passes as one image.

That is a path, a Pillow image, a numpy array, a torch tensor, the bytes of an image file, an open
file, or a row {"bytes": ..., "path": ...} as the package `datasets` stores it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import ImageInput
from caprompt.errors import DataError
from caprompt.utils.paths import expand_user

__all__ = ["convert_image", "is_one_image", "is_tensor"]

CHANNELS = (1, 3, 4)  # sizes of an axis of colors: gray, RGB, RGBA
KINDS = "a path, a Pillow image, an array or tensor, the bytes of an image file, or an open file"


def convert_image(image: Any, what: str) -> ImageInput:
    """Return an image in one of the forms that `images.decode` reads; errors call it `what`.

    >>> import numpy as np
    >>> convert_image("cat.jpg", "image 0").name, convert_image(np.zeros((2, 2)), "image 1").shape
    ('cat.jpg', (2, 2))
    """
    if isinstance(image, (str, Path)):
        return expand_user(image)
    if isinstance(image, np.ndarray):
        return image
    if isinstance(image, Image.Image):
        return _convert_pillow(image)
    if is_tensor(image):
        return _convert_tensor(image, what)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return _hold(bytes(image))
    if isinstance(image, Mapping) and ("bytes" in image or "path" in image):
        return _convert_stored(image, what)
    if callable(getattr(image, "read", None)):
        return _convert_file(image, what)
    raise DataError(f"{what} is a {type(image).__name__}; give {KINDS}")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_one_image(value: Any) -> bool:
    """Return whether a value is a single image in memory, rather than a sequence of images.

    An array of three axes is one image if its last axis has the size of color channels, a tensor if its first or last axis has;
    else it is a stack of gray images.

    >>> import numpy as np
    >>> [is_one_image(np.zeros(shape)) for shape in ((8, 8), (8, 8, 3), (5, 8, 8), (5, 8, 8, 3))]
    [True, True, False, False]
    """
    if isinstance(value, np.ndarray):
        return value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)
    if is_tensor(value):
        return value.ndim == 2 or (value.ndim == 3 and (value.shape[0] in CHANNELS or value.shape[2] in CHANNELS))
    return isinstance(value, (Image.Image, bytes, bytearray, memoryview)) or callable(getattr(value, "read", None))


def _convert_pillow(image: Image.Image) -> ImageInput:
    """Return a Pillow image, or its file if its pixels have not been read yet, so that it does not stay open."""
    if isinstance(image, ImageFile.ImageFile) and image.tile and image.tell() == 0 and isinstance(image.filename, str):
        path = Path(image.filename)
        if path.is_file():
            image.close()
            return path
    return image


def _convert_tensor(tensor: Any, what: str) -> NDArray[Any]:
    """Return an array (height, width[, channels]) of a tensor whose channels are first or last."""
    if tensor.ndim not in (2, 3):
        hint = "give the images of a batch one by one" if tensor.ndim == 4 else "an image has two or three axes"
        raise DataError(f"{what} is a tensor of shape {tuple(tensor.shape)}; {hint}")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy has no bfloat16
    if tensor.ndim == 3 and tensor.shape[0] in CHANNELS:
        tensor = tensor.permute(1, 2, 0)
    return np.ascontiguousarray(tensor.numpy())


def _convert_stored(row: Mapping[str, Any], what: str) -> ImageInput:
    if row.get("bytes") is not None:
        return _hold(row["bytes"])
    if row.get("path") is not None:
        return Path(row["path"])
    raise DataError(f"{what} is empty; remove it from the dataset")


def _convert_file(file: Any, what: str) -> ImageInput:
    with suppress(AttributeError, io.UnsupportedOperation):  # a stream, such as a response from the network, cannot seek
        file.seek(0)
    content = file.read()
    if not isinstance(content, bytes):
        raise DataError(f"{what} is a file that was opened as text; open it with mode 'rb'")
    return _hold(content)


def _hold(content: bytes) -> ImageInput:
    return EncodedImage(lambda: content)
