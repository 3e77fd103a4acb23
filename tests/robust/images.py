"""Damaged images of twelve formats, read from a file and from memory."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from caprompt.data.encoded_image import EncodedImage
from caprompt.data.images import decode, hash_image, read_size
from robust.attack import Attack, InvalidError
from robust.damage import NUMBERS, mutate_bytes

SUFFIXES = ("jpg", "png", "gif", "bmp", "webp", "tiff", "ppm", "tga", "dib", "jp2", "heic", "avif")
FORMATS = {"jpg": "JPEG", "jp2": "JPEG2000", "heic": "HEIF", "tiff": "TIFF"}
HEAD = 64  # bytes with sizes and offsets, which are damaged more often


def make_samples(folder: Path) -> dict[str, list[bytes]]:
    """Return image files of every format, in several modes and variants of compression."""
    import pillow_heif

    Image.init()
    pillow_heif.register_heif_opener()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 32, 4)).astype(np.uint8)
    color, alpha = Image.fromarray(pixels[..., :3]), Image.fromarray(pixels)
    samples = {}
    for suffix in SUFFIXES:
        used = suffix if _name_format(suffix) in Image.SAVE else "ppm"  # AVIF is not in every build of Pillow
        variants = _variants(used, color, alpha)
        samples[suffix] = [_encode(image, used, **options) for image, options in variants if _can_write(image, used)]
    return samples


def _can_write(image: Image.Image, suffix: str) -> bool:
    """Return whether this version of Pillow writes images of this mode in a format."""
    try:
        _encode(image, suffix)
    except OSError:
        return False
    return True


def _name_format(suffix: str) -> str:
    return FORMATS.get(suffix, suffix.upper())


def _variants(suffix: str, color: Image.Image, alpha: Image.Image) -> list[tuple[Image.Image, dict[str, object]]]:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated
    gray, palette, deep = (
        color.convert("L"),
        color.convert("P"),
        Image.fromarray(np.asarray(color.convert("L")).astype(np.uint16) * 257),
    )
    animated = {"save_all": True, "append_images": [palette.rotate(90)]}
    return {
        "jpg": [(color, {"exif": exif}), (gray, {}), (color, {"progressive": True}), (color.convert("CMYK"), {})],
        "png": [(color, {"exif": exif}), (alpha, {}), (palette, {"transparency": 1}), (deep, {}), (gray.convert("1"), {})],
        "gif": [(palette, {}), (palette, animated), (gray, {"interlace": 1})],
        "bmp": [(color, {}), (palette, {}), (gray.convert("1"), {})],
        "webp": [(color, {}), (alpha, {"lossless": True}), (color, {"exif": exif})],
        "tiff": [
            *((color, {"compression": name}) for name in ("raw", "tiff_lzw", "jpeg", "tiff_deflate", "packbits")),
            (deep, {}),
            (color.convert("CMYK"), {}),
        ],
        "ppm": [(color, {}), (gray, {}), (deep, {})],
        "tga": [(color, {}), (alpha, {"compression": "tga_rle"}), (palette, {})],
        "dib": [(color, {}), (palette, {})],
        "jp2": [(color, {}), (alpha, {}), (gray, {})],
        "heic": [(color, {}), (alpha, {})],
        "avif": [(color, {}), (alpha, {})],
    }[suffix]


def _encode(image: Image.Image, suffix: str, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, _name_format(suffix), **options)
    return content.getvalue()


def damage(samples: dict[str, list[bytes]], folder: Path, rng: Random, number: int) -> str:
    """Write one damaged image, sometimes under the name of another format."""
    suffix = SUFFIXES[number % len(SUFFIXES)]
    content, other = rng.choice(samples[suffix]), rng.choice(samples[rng.choice(SUFFIXES)])
    name = suffix if rng.random() < 0.9 else rng.choice(SUFFIXES)
    if suffix == "png" and rng.random() < 0.5:
        changed, note = mutate_png(content, rng)
    else:
        changed, note = mutate_bytes(content, other, rng, HEAD)
    (folder / f"image.{name}").write_bytes(changed)
    return f"{suffix} as .{name}: {note}"


def mutate_png(content: bytes, rng: Random) -> tuple[bytes, str]:
    """Damage one chunk of a PNG file, with a right checksum; of the header, one number is forged."""
    chunks, position = [], 8
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        chunks.append((content[position + 4 : position + 8], content[position + 8 : position + 8 + length]))
        position += 12 + length
    index = rng.choice((0, 0, rng.randrange(len(chunks))))
    kind, data = chunks[index]
    if index == 0:
        field = rng.randrange(7)
        sizes = [*struct.unpack(">II5B", data)]
        sizes[field] = rng.choice(NUMBERS) & (0xFFFFFFFF if field < 2 else 0xFF)
        data, note = struct.pack(">II5B", *sizes), f"IHDR {sizes}"
    elif kind == b"IDAT" and rng.random() < 0.5:
        data, note = zlib.compress(bytes(rng.choice((0, 10, 10**6, 10**8)))), "IDAT of another length"
    else:
        data, note = mutate_bytes(data, b"", rng)
    chunks[index] = (kind, data)
    if rng.random() < 0.1:
        chunks.insert(
            1, rng.choice(((b"zTXt", b"k\0\0" + zlib.compress(bytes(10**8))), (b"iCCP", b"k\0\0" + zlib.compress(bytes(10**7)))))
        )
        note += ", with a large text"
    parts = [struct.pack(">I", len(own)) + kind + own + struct.pack(">I", zlib.crc32(kind + own)) for kind, own in chunks]
    return content[:8] + b"".join(parts), note


def use(_: object, folder: Path) -> None:
    """Decode the image at its full and at a reduced size, from its file and from memory."""
    (path,) = folder.iterdir()
    hash_image(path)
    width, height = read_size(path)
    pixels = decode(path)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise InvalidError(f"decoded to {pixels.dtype} {pixels.shape}, stated as {width} x {height}")
    small = decode(EncodedImage(path.read_bytes), shrink_to=16) if path.suffix != ".tga" else decode(path, shrink_to=16)
    if min(small.shape[:2]) != min(16, *pixels.shape[:2]):
        raise InvalidError(f"{pixels.shape} was reduced to {small.shape}")


ATTACK = Attack("images", "mutated images of twelve formats", 10_000, 400, make_samples, damage, use)
