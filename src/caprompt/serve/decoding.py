"""Decoding of images from clients, within a limit of pixels: what is too large is refused by its header."""

from __future__ import annotations

import re

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import Pixels, decode, read_size
from caprompt.data.sources import explain_without_skipping
from caprompt.errors import DataError

__all__ = ["decode_untrusted"]

MAX_SCANS = 100  # of a progressive JPEG, each of which takes as long as the whole image; cameras and programs write about ten
SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")  # header of a scan of one to four components


def decode_untrusted(content: bytes, max_pixels: int, shrink_to: int) -> Pixels:
    """Decode the content of an image file to (H, W, 3); raise `DataError` with a sentence on what is wrong with it.

    The formats are those of the library, none of which runs a program. The time is bounded by the pixels and
    the scans.
    """
    if not content:
        raise DataError("the image is empty; send the content of an image file")
    if sum(1 for _ in SCAN.finditer(content)) > MAX_SCANS:
        raise DataError(f"the image has more than {MAX_SCANS} scans, which would take long to decode; save it as an ordinary JPEG")
    image = EncodedImage(lambda: content)
    with explain_without_skipping():
        width, height = read_size(image)
        if width * height > max_pixels:
            raise DataError(
                f"the image has {width} x {height} pixels, and at most {max_pixels / 1e6:g} million are allowed; make it smaller"
            )
        return decode(image, shrink_to)
