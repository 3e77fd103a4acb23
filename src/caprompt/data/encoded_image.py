"""An image file that is not on disk: bytes in memory, or in a dataset that reads them when they are needed."""

from __future__ import annotations

import io
from collections.abc import Callable

__all__ = ["EncodedImage"]


class EncodedImage:
    """The content of an image file, as `read` returns it. It is decoded at every use, so only its bytes stay in memory.

    >>> image = EncodedImage(lambda: b"GIF89a...")
    >>> image.size, image.open().read(6)
    (9, b'GIF89a')
    """

    suffix = ""  # it has no file name, as `Path.suffix` says of one without a suffix

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.read = read

    @property
    def size(self) -> int:
        """Number of bytes; equal images have the same."""
        return len(self.read())

    def open(self, mode: str = "rb", buffering: int = -1) -> io.BytesIO:
        """Return the content as an open file, as `Path.open` does."""
        return io.BytesIO(self.read())
