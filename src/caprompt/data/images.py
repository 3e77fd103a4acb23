"""Decoding and hashing of single images; decoded images are upright 8-bit RGB."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from caprompt.data.byte_budget import ByteBudget
from caprompt.data.encoded_image import EncodedImage
from caprompt.data.formats import FORMATS, IMAGE_SUFFIXES, identify_format, list_pillow_formats
from caprompt.data.jpeg import REDUCTIONS, JPEGHeader, decode_jpeg, get_decoder, read_header
from caprompt.errors import DataError, StorageError, first_line
from caprompt.utils.files import compute_sha256
from caprompt.utils.memory import release_freed_memory

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "PART_BYTES",
    "READ_FLAGS",
    "SKIP_HINT",
    "ContentKey",
    "ImageInput",
    "Pixels",
    "PlainJPEG",
    "decode",
    "decode_into",
    "get_size",
    "hash_image",
    "is_plain_pillow",
    "measure_short_side",
    "read_jpeg",
    "read_size",
]

ImageInput: TypeAlias = Path | Image.Image | NDArray[Any] | EncodedImage
Pixels: TypeAlias = NDArray[np.uint8]
ContentKey: TypeAlias = tuple[int, bytes]  # size of a file, and a part from its middle

MAX_PIXELS = 89_478_485  # Pillow's default; checked here as well, since an application may lift Pillow's limit
MAX_ASPECT = 200  # a 1 x 100,000 strip resized to a short side of 256 would need 20 GB
LARGE_PIXELS = 1 << 24  # from here on an image is converted in strips, since conversion takes up to 24 bytes per pixel
STRIP_PIXELS = 1 << 22
JPEG_SUFFIXES = next(each.suffixes for each in FORMATS if each.name == "JPEG")
MAX_JPEG_BYTES = 1 << 24  # larger files are not read as a whole
READ_BYTES = 120 * 1024  # that are read of a file without asking for its size: every call lets other threads run Python in between
READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # not to wait for the writer of a FIFO
DECODE_BYTES = 512 * 1024**2  # memory for all decodes that run at the same time; a single one may take more
#: System errors that come from the file itself: none there, a folder, or damage that makes a decoder seek before its start.
OF_THE_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})
PART_BYTES = 64  # of a file's content that tell most files of the same size apart
MAX_MEASURED = 100  # images whose size is read to know that of all
SKIP_HINT = "; remove it, or skip unreadable images with skip_bad=True"

_budget = ByteBudget(DECODE_BYTES)


def decode(image: ImageInput, shrink_to: int | None = None) -> Pixels:
    """Decode an image to (H, W, 3) uint8.

    An image whose short side exceeds `shrink_to` is reduced to that short side. The EXIF rotation
    is applied, transparency is composited over white, 16-bit grays are scaled to 8 bits, and of an
    animation the first frame is taken. The result may share memory with an array that was passed
    in: do not write into it. Threads that decode large images at the same time wait for each other.
    Raise `DataError` for an image that cannot be decoded, `StorageError` where the file cannot be got at.

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
        link = " (it is a link to a file that does not exist)" if isinstance(image, Path) and image.is_symlink() else ""
        # Where the folder is gone as well, it may be the storage that is.
        kind = StorageError if isinstance(image, Path) and not image.parent.is_dir() else DataError
        raise kind(f"there is no image file {_describe(image)}{link}{SKIP_HINT}") from None
    except Exception as error:  # Pillow's parsers raise arbitrary exceptions on damaged files
        kind = StorageError if _is_of_storage(error) else DataError
        raise kind(f"{_describe(image)} is not a readable image ({_describe_error(error)}){SKIP_HINT}") from error


class PlainJPEG(NamedTuple):
    """A JPEG file that needs no more than decoding, and shrinking if it is large, as it was read."""

    content: bytes
    header: JPEGHeader
    reduction: int  # it is decoded at 1 / 1, 2, 4 or 8 of its size
    shape: tuple[int, int, int]  # of the decoded pixels
    shrink_to: int | None  # short side that these are reduced to

    @property
    def num_bytes(self) -> int:
        """Memory that decoding and shrinking may take."""
        height, width, _ = self.shape
        return 8 * width * height + (6 * self.header.width * self.header.height if self.header.progressive else 0)

    @property
    def is_shrunk(self) -> bool:
        """Whether the decoded pixels are more than are wanted."""
        return self.shrink_to is not None and min(self.shape[:2]) > self.shrink_to

    @property
    def content_key(self) -> ContentKey:
        """What `validation` compares files by before it reads all of them."""
        middle = len(self.content) // 2
        return len(self.content), self.content[middle : middle + PART_BYTES]

    def decode(self, out: Pixels | None = None) -> Pixels | None:
        """Decode it, into `out` of its shape if given; None if it is damaged, which `images.decode` reports or overlooks."""
        with _budget.reserve(self.num_bytes):
            pixels = decode_jpeg(self.content, self.header, self.reduction, out)
            if pixels is None or not self.is_shrunk:
                return pixels
            return np.asarray(_shrink(Image.fromarray(pixels), self.shrink_to))


def read_jpeg(image: ImageInput, shrink_to: int | None = None) -> PlainJPEG | None:
    """Read a file whose `PlainJPEG.decode` gives the pixels of `decode`; None for every other image, also an unreadable one."""
    if not isinstance(image, (Path, EncodedImage)):
        return None
    try:
        content = _read_jpeg(image)
        return None if content is None else _parse_jpeg(content, shrink_to)
    except Exception:  # which `decode` turns into a sentence
        return None


def decode_into(files: Sequence[PlainJPEG], rows: Iterable[Pixels]) -> bool:
    """Decode files one after the other, each into an array of its shape; return whether all of them could be decoded."""
    with _budget.reserve(max(file.num_bytes for file in files)):
        pairs = zip(files, rows, strict=True)
        return all(decode_jpeg(file.content, file.header, file.reduction, row) is not None for file, row in pairs)


def is_plain_pillow(image: ImageInput, shrink_to: int | None = None) -> bool:
    """Return whether an image is a Pillow image whose pixels are those of `decode`, as they are.

    >>> is_plain_pillow(Image.new("RGB", (4, 4))), is_plain_pillow(Image.new("L", (4, 4)))
    (True, False)
    """
    if type(image) is not Image.Image or image.mode != "RGB" or image.info or image.width * image.height > STRIP_PIXELS:
        return False
    is_upright = getattr(image, "_exif", None) is None or _get_orientation(image) == 1
    return is_upright and (shrink_to is None or min(image.size) <= shrink_to)


def hash_image(image: ImageInput) -> bytes:
    """Hash an image's content: the bytes of a file, also of one in memory, else the pixels.

    >>> black, white = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
    >>> hash_image(black) == hash_image(black.copy()), hash_image(black) == hash_image(white)
    (True, False)
    """
    if isinstance(image, Path):
        try:
            _check_regular(image)
            return bytes.fromhex(compute_sha256(image))
        except (OSError, ValueError) as error:
            raise DataError(f"{_describe(image)} cannot be read ({_describe_error(error)}){SKIP_HINT}") from error
    if isinstance(image, EncodedImage):
        return hashlib.sha256(image.read()).digest()
    pixels = image if isinstance(image, np.ndarray) else decode(image)
    return hashlib.sha256(f"{pixels.dtype.str}{pixels.shape}".encode() + pixels.tobytes()).digest()


def read_size(image: Path | EncodedImage) -> tuple[int, int]:
    """Return the width and height that an image file states, without decoding it."""
    try:
        if isinstance(image, Path):
            _check_regular(image)
        with _open_file(image) as opened:
            return opened.size
    except Exception as error:  # as in `decode`
        raise DataError(f"{_describe(image)} is not a readable image ({_describe_error(error)}){SKIP_HINT}") from error


def get_size(image: ImageInput) -> tuple[int, int]:
    """Return both sides of an image in either order; of a file, its header is read."""
    if isinstance(image, (Path, EncodedImage)):
        return read_size(image)
    return image.size if isinstance(image, Image.Image) else (image.shape[0], image.shape[1])


def measure_short_side(images: Sequence[ImageInput]) -> int:
    """Return the median short side in pixels; of many images, of some of them.

    >>> measure_short_side([np.zeros((20, 30, 3), np.uint8), np.zeros((50, 40, 3), np.uint8), Image.new("RGB", (90, 60))])
    40
    """
    return int(np.median([min(get_size(image)) for image in images[:: -(-len(images) // MAX_MEASURED)]]))


def _decode_file(path: Path | EncodedImage, shrink_to: int | None) -> Pixels:
    if isinstance(path, Path):
        _check_regular(path)
    content = _read_jpeg(path)
    if content is not None:
        pixels = _decode_plain_jpeg(content, shrink_to)
        if pixels is not None:
            return pixels
        if isinstance(path, EncodedImage):
            path = EncodedImage(lambda: content)  # a dataset would read it again
    with closing(_open_file(path)) as image:  # may be closed twice, which an image's own context does not allow in Pillow 10
        _check_size(*image.size)
        file_pixels = image.width * image.height
        if shrink_to is not None:
            # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, as long as that is enough.
            image.draft(None, (shrink_to, shrink_to))
        with _budget.reserve(_estimate_bytes(image, file_pixels)):
            try:
                return _load_pixels(image, shrink_to)
            finally:
                image.close()  # frees the memory before another thread may take as much
                if file_pixels > LARGE_PIXELS:
                    release_freed_memory()


def _read_jpeg(path: Path | EncodedImage) -> bytes | None:
    """Return the content of a file if it may be a JPEG file for `decode_jpeg`; of a FIFO or a device, what is there already."""
    if get_decoder() is None:
        return None
    if isinstance(path, EncodedImage):
        return path.read()
    name = str(path)
    if not name.lower().endswith(JPEG_SUFFIXES):
        return None
    try:
        file = os.open(name, READ_FLAGS)
    except BlockingIOError:  # another program holds a lease on it; Pillow waits for that
        return None
    try:
        content = os.read(file, READ_BYTES)
        return content if len(content) < READ_BYTES else _read_whole(file)
    finally:
        os.close(file)


def _read_whole(file: int) -> bytes | None:
    """Return the content of an open file from its start, or None if it is too large."""
    size = os.fstat(file).st_size
    if size > MAX_JPEG_BYTES:
        return None
    os.lseek(file, 0, os.SEEK_SET)
    content = os.read(file, size)
    return content if len(content) == size else None


def _decode_plain_jpeg(content: bytes, shrink_to: int | None) -> Pixels | None:
    """Decode a JPEG file as `_decode_file` does, but without Pillow; None if it is not plain, too large, or damaged."""
    file = _parse_jpeg(content, shrink_to)
    return None if file is None else file.decode()


def _parse_jpeg(content: bytes, shrink_to: int | None) -> PlainJPEG | None:
    header = read_header(content)
    if header is None or len(content) > MAX_JPEG_BYTES:
        return None
    width, height = header.width, header.height
    if width * height > LARGE_PIXELS or max(width, height) > MAX_ASPECT * min(width, height):
        return None
    scale = 1 if shrink_to is None else min(width, height) // shrink_to
    reduction = max((each for each in REDUCTIONS if each <= scale), default=1)  # as in Pillow's `draft`
    return PlainJPEG(content, header, reduction, (-(-height // reduction), -(-width // reduction), 3), shrink_to)


def _check_regular(path: Path) -> int:
    """Return the size of a file; raise for a path that is no regular one: reading a FIFO or a device might never end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    return status.st_size


def _open_file(path: Path | EncodedImage) -> Image.Image:
    file = path if isinstance(path, Path) else path.open()
    try:
        return Image.open(file, formats=list_pillow_formats())
    except UnidentifiedImageError:
        other = identify_format(path)
        if other is None or other.name in list_pillow_formats():
            raise
        if other.name == "HEIF":
            _register_heif()
        return Image.open(file, formats=(other.name,))


def _register_heif() -> None:
    try:
        import pillow_heif
    except ImportError:
        raise ValueError("HEIC needs an extra: pip install 'caprompt[heic]'") from None
    pillow_heif.register_heif_opener()


def _decode_pillow(image: Image.Image, shrink_to: int | None) -> Pixels:
    _check_size(*image.size)
    if is_plain_pillow(image, shrink_to):
        return np.asarray(image)
    with _budget.reserve(_estimate_bytes(image, 0)):
        return _load_pixels(image, shrink_to)


def _load_pixels(image: Image.Image, shrink_to: int | None) -> Pixels:
    image.load()  # before EXIF is read, so that only EXIF errors are ignored there
    if image.width * image.height > LARGE_PIXELS:
        return np.asarray(_shrink(_apply_rotation(_reduce_in_strips(image, shrink_to)), shrink_to))
    return np.asarray(_shrink(_convert_to_rgb(_apply_rotation(image)), shrink_to))


def _estimate_bytes(image: Image.Image, file_pixels: int) -> int:
    """Return the memory that decoding and converting an image takes; a JPEG may have more pixels in its file."""
    decoder_bytes = next((each.decoder_bytes for each in FORMATS if each.name == image.format), 0)
    if image.info.get("progressive"):
        decoder_bytes = 6  # a progressive JPEG is held as a whole in coefficients, whatever size it is decoded at
    pixels = image.width * image.height
    converted = STRIP_PIXELS if pixels > LARGE_PIXELS else pixels
    return decoder_bytes * max(pixels, file_pixels) + 4 * pixels + (4 if image.mode in ("RGB", "L") else 20) * converted


def _reduce_in_strips(image: Image.Image, shrink_to: int | None) -> Image.Image:
    """Convert a large image to RGB, reduced by a whole number to no less than twice `shrink_to`, with its orientation in EXIF."""
    factor = max(1, min(image.size) // (2 * shrink_to)) if shrink_to is not None else 1
    reduced = Image.new("RGB", (-(-image.width // factor), -(-image.height // factor)))
    num_rows = max(1, STRIP_PIXELS // image.width // factor) * factor
    for top in range(0, image.height, num_rows):
        strip = image.crop((0, top, image.width, min(top + num_rows, image.height)))
        reduced.paste(_convert_to_rgb(strip).reduce(factor), (0, top // factor))
    reduced.getexif()[ExifTags.Base.Orientation] = _get_orientation(image)
    return reduced


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
    if _get_orientation(image) == 1:
        return image  # where there is nothing to rotate, Pillow would copy the image
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # without valid EXIF data there is no rotation, but the pixels are fine
        return image


def _get_orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # the EXIF data are damaged
        return 1


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I":  # 32-bit, but files store 16-bit grays in it
        return _convert_to_rgb(Image.fromarray(_convert_to_uint8(np.asarray(image).clip(0, 65535).astype(np.uint16))))
    if image.mode == "F" or image.mode.startswith("I;16"):
        return _convert_to_rgb(Image.fromarray(_convert_to_uint8(np.asarray(image))))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # Pillow would copy it


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
    if isinstance(image, EncodedImage):
        return f"an image file of {image.size} bytes in memory"
    return f"'{image}'" if isinstance(image, Path) else f"a Pillow image of mode {image.mode}, size {image.size}"


def _is_of_storage(error: Exception) -> bool:
    """Return whether the system failed to read a file; Pillow's own errors about damage have no number."""
    return isinstance(error, OSError) and error.errno is not None and error.errno not in OF_THE_FILE


def _describe_error(error: Exception) -> str:
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"a possible decompression bomb: more than {MAX_PIXELS // 10**6} million pixels"
    if isinstance(error, UnidentifiedImageError):
        return "its content is in no known image format"
    return (isinstance(error, OSError) and error.strerror) or first_line(error)
