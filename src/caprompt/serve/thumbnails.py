"""One small picture per class, kept only if the owner of the server allows it: images are not kept otherwise."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from caprompt.data.images import decode
from caprompt.serve.uploads import Upload
from caprompt.utils.files import write_bytes

__all__ = ["ThumbnailStore"]

SIDE = 160  # pixels


class ThumbnailStore:
    """Thumbnails of the classes of a model, in files named by a hash of the class's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str) -> Path | None:
        """Return the picture of a class, if there is one."""
        path = self._path(name)
        return path if path.is_file() else None

    def add_missing(self, upload: Upload) -> None:
        """Keep the first image of each class that has no picture yet."""
        for image in upload.images:
            if self.find(image.label) is None:
                picture = Image.fromarray(decode(upload.folder / image.file, SIDE))
                side = min(picture.size)
                left, top = (picture.width - side) // 2, (picture.height - side) // 2
                content = io.BytesIO()
                picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE)).save(content, "WEBP", quality=80)
                write_bytes(self._path(image.label), content.getvalue())

    def rename(self, old: str, new: str) -> None:
        """Let a class keep its picture under another name."""
        if self._path(old).is_file():
            self._path(old).replace(self._path(new))

    def keep_only(self, names: Iterable[str]) -> None:
        """Delete the pictures of all other classes."""
        kept = {self._path(name) for name in names}
        for path in self.folder.glob("*.webp"):
            if path not in kept:
                path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.webp"
