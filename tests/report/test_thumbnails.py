from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import square, write_squares
from PIL import Image

from caprompt.data import Samples
from caprompt.report.run_data import read_run
from caprompt.report.thumbnails import MAX_SIDE, encode_data_url, make_thumbnails


def decode_url(url: str) -> Image.Image:
    kind, _, content = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_thumbnails_show_the_test_images(runs: Path) -> None:
    run = read_run(runs / "seed0", "seed0")
    thumbnails = make_thumbnails(run, [0, 5, 5])
    assert thumbnails.note == ""
    assert list(thumbnails.urls) == [0, 5]
    assert run.predictions is not None
    color = run.predictions.classes[run.predictions.true[5]]
    shown = np.asarray(decode_url(thumbnails.urls[5]), dtype=float)
    assert np.abs(shown - square(color, 51)).mean() < 25  # the second image of its class, up to JPEG compression


def test_large_images_are_downscaled() -> None:
    wide = Samples((np.full((400, 1000, 3), 200, dtype=np.uint8),), ("cat",))
    assert max(decode_url(encode_data_url(wide, 0)).size) == MAX_SIDE


@pytest.fixture
def moved(runs: Path, tmp_path: Path) -> Path:
    """A run whose dataset is at another path."""
    folder = Path(shutil.copytree(runs / "seed0", tmp_path / "run"))
    plan = json.loads((folder / "run.json").read_text())
    plan["config"]["dataset"] = str(tmp_path / "data")
    (folder / "run.json").write_text(json.dumps(plan))
    return folder


def test_missing_data_set_gives_a_note(moved: Path) -> None:
    thumbnails = make_thumbnails(read_run(moved, "run"), [0])
    assert thumbnails.urls == {}
    assert thumbnails.note == "No images: the dataset of this run is not available."


def test_changed_data_set_gives_a_note(moved: Path) -> None:
    write_squares(moved.parent / "data" / "train", ["red", "blue"])
    write_squares(moved.parent / "data" / "test", ["red", "blue"], each=12)
    assert "is not the one that this run was tested on" in make_thumbnails(read_run(moved, "run"), [0]).note


def test_images_that_the_run_skipped_are_skipped_again(runs: Path, moved: Path) -> None:
    shutil.copytree(runs / "data", moved.parent / "data")
    (moved.parent / "data" / "test" / "blue" / "000.png").write_bytes(b"")  # sorts before the others
    assert len(make_thumbnails(read_run(moved, "run"), [3]).urls) == 1


def test_no_images_need_no_data_set(moved: Path) -> None:
    assert make_thumbnails(read_run(moved, "run"), []).note == ""
