"""Thumbnails of test images, read from the dataset and embedded in the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from caprompt.data import Samples, load_dataset
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import decode
from caprompt.data.validation import validate_images
from caprompt.errors import CapromptError
from caprompt.experiments.execution import split_data
from caprompt.report.run_data import RunRecord

__all__ = ["Thumbnails", "encode_thumbnails", "make_thumbnails"]

MAX_SIDE = 96  # pixels


@dataclass(frozen=True)
class Thumbnails:
    """Data URLs and file names by index among the test images; `note` says why there are no images."""

    urls: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # where they are known
    note: str = ""


def make_thumbnails(run: RunRecord, images: Iterable[int]) -> Thumbnails:
    """Make thumbnails of these test images of a run.

    There are none, and a note says why, if the dataset is missing or not the one that was tested.
    """
    indices = sorted(set(images))
    if not indices:
        return Thumbnails()
    try:
        test = _load_test_images(run)
        if test is None:
            return Thumbnails(note="No images: the dataset on disk is not the one that this run was tested on.")
        return Thumbnails({index: encode_data_url(test, index) for index in indices})
    except (CapromptError, OSError):
        return Thumbnails(note="No images: the dataset of this run is not available.")


def encode_thumbnails(test: Samples, images: Iterable[int]) -> Thumbnails:
    """Make thumbnails of these test images, with the names of their files."""
    indices = sorted(set(images))
    names = {index: image.name for index in indices if isinstance(image := test.images[index], Path)}
    return Thumbnails({index: encode_data_url(test, index) for index in indices}, names)


def _load_test_images(run: RunRecord) -> Samples | None:
    """Load the images that a run was tested on, in the same order; return None if they differ."""
    _, test = split_data(load_dataset(run.config.dataset), run.config)
    if len(test) != run.plan["test"]["images"]:  # the run skipped unreadable images
        test = validate_images(test, ImageCache(budget_bytes=0), skip_bad=True)
    return test if test.digest() == run.plan["test"]["sha256"] else None


def encode_data_url(test: Samples, index: int) -> str:
    """Encode one image as the data URL of a JPEG, at most `MAX_SIDE` pixels wide and high."""
    image = Image.fromarray(decode(test.images[index], shrink_to=2 * MAX_SIDE))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
