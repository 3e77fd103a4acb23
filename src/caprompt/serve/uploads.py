"""Images on their way to a lesson: kept on disk until they are taught or a day has passed.

uploads/<id>/images.jsonl      a line per image: number, class, name of the file that was sent, hash
uploads/<id>/000001.jpg        their contents, under numbers; class names and file names never become paths
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from caprompt.data.class_names import check_class_name, natural_key, normalize_class_name
from caprompt.data.formats import IMAGE_SUFFIXES
from caprompt.errors import DataError, InputError
from caprompt.utils.files import write_bytes

__all__ = ["FROZEN", "MAX_IMAGES", "FileProblem", "StagedImage", "Upload", "UploadStore", "clean_label"]

EXPIRY = 24 * 3600  # seconds after the last change
MAX_UPLOADS = 16  # of one model
MAX_IMAGES = 20_000  # of one upload
MAX_PROBLEMS = 200  # that are remembered
FEW_IMAGES = 5  # of a class: fewer are taught, with a warning
IDENTIFIER = re.compile(r"[0-9a-f]{16}")
INDEX = "images.jsonl"
FROZEN = "these images are being taught; wait until the job has ended, or cancel it"


@dataclass(frozen=True)
class StagedImage:
    """An image of an upload."""

    file: str  # its name on disk
    label: str
    name: str  # of the file that was sent
    sha256: str


@dataclass(frozen=True)
class FileProblem:
    """Why a file that was sent is not part of the upload."""

    file: str
    problem: str


class Upload:
    """A staging area; one thread changes it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.frozen = False  # while a job uses it
        self.images: list[StagedImage] = []
        self.problems: list[FileProblem] = []
        self._by_hash: dict[str, StagedImage] = {}
        self._next = 1
        if (folder / INDEX).is_file():
            self._read()

    @property
    def identifier(self) -> str:
        """The name by which clients call it."""
        return self.folder.name

    def add(
        self,
        label: str,
        name: str,
        content: bytes,
        check: Callable[[bytes], object],
        is_learned: Callable[[bytes, str], bool],
    ) -> FileProblem | None:
        """Stage an image, or return what is wrong with it: `check` raises `DataError` for one that cannot be read.

        Raise `InputError` while a job uses the upload.
        """
        try:
            check(content)
        except DataError as error:
            return self._remember(FileProblem(name, str(error)))
        digest = hashlib.sha256(content)
        with self.lock:
            self._refuse_frozen()
            problem = self._find_repetition(label, digest.hexdigest(), digest.digest(), is_learned)
            if problem is None:
                suffix = Path(name).suffix.lower()
                image = StagedImage(
                    f"{self._next:06d}{suffix if suffix in IMAGE_SUFFIXES else ''}", label, name[:255], digest.hexdigest()
                )
                (self.folder / image.file).write_bytes(content)
                with (self.folder / INDEX).open("a", encoding="utf-8") as index:
                    index.write(json.dumps(asdict(image)) + "\n")
                self._include(image)
                return None
        return self._remember(FileProblem(name, problem))

    def _find_repetition(self, label: str, hexadecimal: str, digest: bytes, is_learned: Callable[[bytes, str], bool]) -> str | None:
        if len(self.images) >= MAX_IMAGES:
            return f"an upload holds at most {MAX_IMAGES} images; teach these first"
        other = self._by_hash.get(hexadecimal)
        if other is not None:
            where = "is in this upload already" if other.label == label else f"is in this upload as '{other.label}'"
            return f"the same image {where} ('{other.name}')"
        return f"this image was learned before as '{label}'" if is_learned(digest, label) else None

    def freeze(self) -> None:
        """Let nobody add or remove images, now that a job is going to read them."""
        with self.lock:
            self.frozen = True

    def _refuse_frozen(self) -> None:
        if self.frozen:
            raise InputError(FROZEN)

    def remove_class(self, label: str, *, even_frozen: bool = False) -> int:
        """Remove the images of a class and return their number; raise `InputError` while a job uses the upload."""
        with self.lock:
            if not even_frozen:
                self._refuse_frozen()
            gone = [image for image in self.images if image.label == label]
            kept = [image for image in self.images if image.label != label]
            lines = "".join(json.dumps(asdict(image)) + "\n" for image in kept)
            write_bytes(self.folder / INDEX, lines.encode())
            self.images, self._by_hash = [], {}
            for image in kept:
                self._include(image)
            for image in gone:
                (self.folder / image.file).unlink(missing_ok=True)
            return len(gone)

    def count(self) -> dict[str, int]:
        """Return the number of images of each class."""
        counts = Counter(image.label for image in self.images)
        return {name: counts[name] for name in sorted(counts, key=natural_key)}

    def list_warnings(self, known: Mapping[str, int]) -> list[str]:
        """Return sentences on what can be taught, but may not be what was meant; `known` are classes of the model."""
        counts = self.count()
        warnings = [
            f"'{name}' has only {count} image{'s' * (count != 1)}; {FEW_IMAGES} or more are better"
            for name, count in counts.items()
            if count < FEW_IMAGES and name not in known
        ]
        if len({*counts, *known}) == 1:
            warnings.append("with a single class there is nothing to tell it from; add a second one")
        return warnings

    def _remember(self, problem: FileProblem) -> FileProblem:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        return problem

    def _include(self, image: StagedImage) -> None:
        self.images.append(image)
        self._by_hash[image.sha256] = image
        self._next = max(self._next, int(image.file[:6]) + 1)

    def _read(self) -> None:
        for line in (self.folder / INDEX).read_text(encoding="utf-8").splitlines():
            try:
                image = StagedImage(**json.loads(line))
            except (TypeError, ValueError):  # the last line of a server that was killed
                continue
            if (self.folder / image.file).is_file():
                self._include(image)


class UploadStore:
    """The uploads of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uploads: dict[str, Upload] = {}
        for path in sorted(folder.glob("*")):
            if IDENTIFIER.fullmatch(path.name):
                self.uploads[path.name] = Upload(path)

    def create(self) -> Upload:
        """Return a new, empty upload."""
        if len(self.uploads) >= MAX_UPLOADS:
            raise InputError(f"there are {len(self.uploads)} uploads already; teach or delete one first")
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(parents=True)
        self.uploads[folder.name] = Upload(folder)
        return self.uploads[folder.name]

    def get(self, identifier: str) -> Upload:
        """Return an upload; raise KeyError for one that is unknown or has expired."""
        return self.uploads[identifier]

    def remove(self, identifier: str) -> None:
        """Delete an upload and its images."""
        upload = self.uploads.pop(identifier, None)
        if upload is not None:
            shutil.rmtree(upload.folder, ignore_errors=True)

    def remove_expired(self, in_use: Sequence[str]) -> None:
        """Delete the uploads that nobody has touched for a day, but for those of a job."""
        now = time.time()
        for identifier, upload in list(self.uploads.items()):
            with suppress(OSError):  # it was deleted meanwhile
                if identifier not in in_use and now - upload.folder.stat().st_mtime > EXPIRY:
                    self.remove(identifier)


def clean_label(label: str) -> str:
    """Return the normalized name of a class; raise `DataError` for one that no class can have.

    >>> clean_label(" cat ")
    'cat'
    """
    name = normalize_class_name(label.strip())
    check_class_name(name)
    return name
