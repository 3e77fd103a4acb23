"""Image file formats that are read: their suffixes, how their files start, and the memory of their decoders.

A file with one of the suffixes is an image by its name. Any other file is an image if it starts like one; only for those are a
few bytes read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from caprompt.data.encoded_image import EncodedImage

__all__ = ["FORMATS", "FORMAT_LIST", "IMAGE_SUFFIXES", "ImageFormat", "identify_format", "is_image_name", "list_pillow_formats"]


@dataclass(frozen=True)
class ImageFormat:
    """A file format under Pillow's name."""

    name: str
    suffixes: tuple[str, ...]
    signature: bytes = b""  # regular expression for the first bytes of a file; empty where there are no such bytes
    decoder_bytes: int = 0  # memory per pixel that its decoder takes besides the decoded image


# Pillow tries every parser that it has whatever the file's name, and that of EPS starts Ghostscript. These start nothing.
FORMATS = (
    ImageFormat("AVIF", (".avif",), rb"....ftypavi[fs]", decoder_bytes=12),
    ImageFormat("BMP", (".bmp",), rb"BM.{4}\0{4}"),
    ImageFormat("DIB", (".dib",)),
    ImageFormat("GIF", (".gif",), rb"GIF8[79]a"),
    ImageFormat("HEIF", (".heic", ".heif", ".hif"), rb"....ftyp(he[iv][cmsx]|mif1|msf1)", decoder_bytes=12),
    ImageFormat("JPEG", (".jfif", ".jpe", ".jpeg", ".jpg"), rb"\xff\xd8\xff"),
    ImageFormat("JPEG2000", (".j2k", ".jp2", ".jpx"), rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51", decoder_bytes=16),
    ImageFormat("PNG", (".png",), rb"\x89PNG\r\n\x1a\n"),
    ImageFormat("PPM", (".pbm", ".pgm", ".pnm", ".ppm"), rb"P[1-6]\s[\d\s#]"),
    ImageFormat("TGA", (".tga",)),
    ImageFormat("TIFF", (".tif", ".tiff"), rb"II[*+]\0|MM\0[*+]"),
    ImageFormat("WEBP", (".webp",), rb"RIFF....WEBP", decoder_bytes=16),
)
FORMAT_LIST = ", ".join(each.name for each in FORMATS)
IMAGE_SUFFIXES = frozenset(suffix for each in FORMATS for suffix in each.suffixes)

# Raw photos of cameras are TIFF files, of which Pillow could read no more than a thumbnail.
_RAW_SUFFIXES = frozenset({".3fr", ".arw", ".cr2", ".dcr", ".dng", ".erf", ".kdc", ".mef", ".nef", ".nrw", ".pef", ".sr2", ".srw"})
# TGA has no signature, so its parser would take much that is no image; HEIF needs an extra.
_ON_DEMAND = frozenset({"HEIF", "TGA"})
_SIGNATURES = tuple((each, re.compile(each.signature, re.DOTALL)) for each in FORMATS if each.signature)
_NUM_BYTES = 16  # the longest signature has 12


def is_image_name(name: str) -> bool:
    """Return whether a file is an image by its name.

    >>> is_image_name("cat.JPG"), is_image_name("cat.jpg.txt"), is_image_name(".png")
    (True, False, False)
    """
    stem, _, suffix = name.rpartition(".")
    return bool(stem) and f".{suffix.lower()}" in IMAGE_SUFFIXES


def identify_format(path: Path | EncodedImage) -> ImageFormat | None:
    """Return the format of a regular file: by its first bytes, or where these do not tell, by its name."""
    suffix = path.suffix.lower()
    if suffix not in _RAW_SUFFIXES:
        try:
            with path.open("rb", buffering=0) as file:
                start = file.read(_NUM_BYTES)
        except OSError:
            start = b""
        for image_format, signature in _SIGNATURES:
            if signature.match(start):
                return image_format
    return next((each for each in FORMATS if not each.signature and suffix in each.suffixes), None)


@cache
def list_pillow_formats() -> tuple[str, ...]:
    """Return the formats that this Pillow can read by itself, under its names: AVIF is not in every build."""
    Image.init()
    return tuple(each.name for each in FORMATS if each.name in Image.OPEN and each.name not in _ON_DEMAND)
