"""Small pictures of test images, read from the data set when the report is made and put into the page as they are."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass, field

from PIL import Image

from caprompt.data import Samples, load_dataset
from caprompt.data.image_cache import ImageCache
from caprompt.data.images import decode
from caprompt.data.validation import validate_images
from caprompt.errors import CapromptError
from caprompt.experiments.execution import split_data
from caprompt.report.run_data import RunRecord

__all__ = ["Thumbnails", "thumbnails"]

SIDE = 96


@dataclass(frozen=True)
class Thumbnails:
    """Data URLs by position among the test images; `note` says why there are none."""

    urls: dict[int, str] = field(default_factory=dict)
    note: str = ""


def thumbnails(run: RunRecord, images: Iterable[int]) -> Thumbnails:
    """Pictures of these test images of a run, or why there are none: the data is not at hand, or no longer what was tested."""
    wanted = sorted(set(images))
    if not wanted:
        return Thumbnails()
    try:
        test = tested_images(run)
        if test is None:
            return Thumbnails(note="No pictures: the data set at hand is not the one that this run was tested on.")
        return Thumbnails({image: data_url(test, image) for image in wanted})
    except (CapromptError, OSError):
        return Thumbnails(note="No pictures: the data set of this run is not at hand.")


def tested_images(run: RunRecord) -> Samples | None:
    """The very images that a run was tested on, in their order; None if what is there now differs."""
    _, test = split_data(load_dataset(run.config.dataset), run.config)
    if len(test) != run.plan["test"]["images"]:  # some could not be read, and were left out
        test = validate_images(test, ImageCache(budget_bytes=0), skip_bad=True)
    return test if test.digest() == run.plan["test"]["sha256"] else None


def data_url(test: Samples, image: int) -> str:
    """One picture, at most `SIDE` pixels wide and high, as the data URL of a JPEG."""
    small = Image.fromarray(decode(test.pictures[image], shrink_to=2 * SIDE))
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    small.save(content, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
