"""Fast decoding of plain JPEG files by `simplejpeg` (the extra `fast`), to the pixels that Pillow decodes.

Both use libjpeg-turbo. Pillow reads a file in pieces and copies the pixels twice, partly while all other Python threads wait;
simplejpeg decodes bytes in memory straight into an array, in any number of threads. Only plain files are taken: baseline or
progressive, 8 bits, YCbCr or gray, upright. Everything else, and everything that is damaged, is Pillow's.
"""

from __future__ import annotations

import io
import re
import struct
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["REDUCTIONS", "JPEGHeader", "decode_jpeg", "get_decoder", "read_header"]

REDUCTIONS = (1, 2, 4, 8)  # of width and height, at which a file can be decoded
MAX_DIFFERENCE = 1  # between the pixels of the two decoders, in levels of 255
_START_OF_IMAGE = b"\xff\xd8\xff"
_END_OF_IMAGE = b"\xff\xd9"
_SOF_BASELINE, _SOF_PROGRESSIVE, _START_OF_SCAN, _JFIF = 0xC0, 0xC2, 0xDA, 0xE0
_PLAIN_SEGMENTS = frozenset({0xC4, 0xDB, 0xDD, 0xFE})  # Huffman and quantization tables, restart interval, comment
_APPLICATIONS = {_JFIF: (b"JFIF\0", 14), 0xE2: (b"ICC_PROFILE\0", 14), 0xEE: (b"Adobe", 12)}  # by marker: start, least length
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_ORIENTATION_TAG = 0x0112
_ORIENTATION_NAME = re.compile(rb"orientation", re.IGNORECASE)
_FRAME = struct.Struct(">BHHB")  # bits, height, width, components


class JPEGHeader(NamedTuple):
    """Size of a plain JPEG file in pixels, and whether it is progressive."""

    width: int
    height: int
    progressive: bool
    has_known_colors: bool  # it says by itself that it is gray or YCbCr: by one component, or as a JFIF file


def read_header(content: bytes) -> JPEGHeader | None:
    """Return the header of a JPEG file, or None if the file is not plain: its pixels need more than decoding, or it is damaged.

    >>> read_header(b"GIF89a") is None
    True
    """
    if not content.startswith(_START_OF_IMAGE) or content.rfind(_END_OF_IMAGE) < 0:
        return None
    frame, position, size, has_exif, is_jfif = None, 2, len(content), False, False
    while position + 4 <= size:
        if content[position] != 0xFF:
            return None
        marker, end = content[position + 1], position + 2 + (content[position + 2] << 8 | content[position + 3])
        if marker == _START_OF_SCAN:
            return None if frame is None else _read_frame(*frame, is_jfif)
        if marker in (_SOF_BASELINE, _SOF_PROGRESSIVE):
            if frame is not None:
                return None
            frame = content[position + 4 : end], marker == _SOF_PROGRESSIVE
        elif marker not in _PLAIN_SEGMENTS:
            body = content[position + 4 : end]
            if not _is_harmless(marker, body) or (has_exif and body.startswith(_EXIF)):  # Pillow joins several EXIF segments
                return None
            has_exif = has_exif or body.startswith(_EXIF)
            is_jfif = is_jfif or marker == _JFIF
        position = end
    return None


def decode_jpeg(
    content: bytes, header: JPEGHeader, reduction: int = 1, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8] | None:
    """Decode a plain JPEG file to (H, W, 3), at 1/2, 1/4 or 1/8 of its size by `reduction`; None if it is not fit for that.

    With `out`, a contiguous array of that shape, the pixels are written there.
    """
    decoder = get_decoder()
    if decoder is None:
        return None
    try:
        if not header.has_known_colors and decoder.decode_jpeg_header(content)[2] not in ("YCbCr", "Gray"):
            return None
        return _decode(decoder, content, header.height, header.width, reduction, out)
    except Exception:  # whatever is wrong with the file, Pillow says it, or reads it nevertheless
        return None


@cache
def get_decoder() -> ModuleType | None:
    """Return `simplejpeg` if it is installed and decodes the same pixels as Pillow here, else None."""
    try:
        import simplejpeg
    except ImportError:
        return None
    rows, columns = np.mgrid[0:70, 0:90]
    pixels = np.stack([3 * rows, 2 * columns, 255 - rows - columns], axis=2).astype(np.uint8)
    try:
        for mode in ("RGB", "L"):
            file = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=85)
            for reduction in REDUCTIONS:
                expected = _decode_by_pillow(file, reduction)
                fast = _decode(simplejpeg, file.getvalue(), 70, 90, reduction)
                if np.abs(fast.astype(np.int16) - expected).max() > MAX_DIFFERENCE:
                    return None
    except Exception:  # a library that fails at this is not used
        return None
    return simplejpeg  # type: ignore[no-any-return]


def _decode(
    decoder: ModuleType, content: bytes, height: int, width: int, reduction: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Decode to exactly the size that Pillow's `draft` leads to: of the sizes that are not smaller, the smallest is taken."""
    height, width = -(-height // reduction), -(-width // reduction)
    buffer = None if out is None else out.reshape(-1)
    pixels: NDArray[np.uint8] = decoder.decode_jpeg(content, "RGB", min_height=height, min_width=width, buffer=buffer)
    if pixels.shape != (height, width, 3):
        raise ValueError(f"decoded to {pixels.shape} instead of {(height, width, 3)}")
    return pixels


def _decode_by_pillow(file: io.BytesIO, reduction: int) -> NDArray[np.int16]:
    file.seek(0)
    with Image.open(file, formats=("JPEG",)) as image:
        image.draft(None, (image.width // reduction, image.height // reduction))
        return np.asarray(image.convert("RGB")).astype(np.int16)


def _read_frame(body: bytes, progressive: bool, is_jfif: bool) -> JPEGHeader | None:
    if len(body) < _FRAME.size:
        return None
    bits, height, width, components = _FRAME.unpack_from(body)
    if bits != 8 or components not in (1, 3) or not height or not width:
        return None
    return JPEGHeader(width, height, progressive, is_jfif or components == 1)


def _is_harmless(marker: int, body: bytes) -> bool:
    """Return whether a segment of an application has no influence on the decoded pixels."""
    if marker == 0xED:  # of Photoshop
        return True
    if marker == 0xE1 and body.startswith(_EXIF):
        return _is_upright(body[len(_EXIF) :])
    if marker == 0xE1 and body.startswith(_XMP):
        return _ORIENTATION_NAME.search(body) is None  # Pillow looks for it here as well
    start, least = _APPLICATIONS.get(marker, (b"", 0))
    return bool(start) and body.startswith(start) and len(body) >= least


def _is_upright(exif: bytes) -> bool:
    """Return whether EXIF data state no orientation, or that of the pixels as they are.

    >>> entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    >>> _is_upright(b"II*\\0" + struct.pack("<IH", 8, 1) + entry), _is_upright(b"II*\\0" + struct.pack("<IH", 8, 0))
    (False, True)
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    try:
        if order is None:
            return False
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        entries = [struct.unpack_from(f"{order}HHIH", exif, start + 2 + 12 * number) for number in range(count)]
    except struct.error:
        return False
    return all((kind, values, value) == (3, 1, 1) for tag, kind, values, value in entries if tag == _ORIENTATION_TAG)
