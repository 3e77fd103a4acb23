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
from caprompt.report.thumbnails import SIDE, data_url, thumbnails


def picture(url: str) -> Image.Image:
    kind, _, content = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_pictures_are_those_of_the_test_images(runs: Path) -> None:
    run = read_run(runs / "seed0", "seed0")
    found = thumbnails(run, [0, 5, 5])
    assert found.note == ""
    assert list(found.urls) == [0, 5]
    assert run.final is not None
    colour = run.final.classes[run.final.true[5]]
    shown = np.asarray(picture(found.urls[5]), dtype=float)
    assert np.abs(shown - square(colour, 51)).mean() < 25  # the second of its class, but for what JPEG loses


def test_large_pictures_are_made_small() -> None:
    wide = Samples((np.full((400, 1000, 3), 200, dtype=np.uint8),), ("cat",))
    assert max(picture(data_url(wide, 0)).size) == SIDE


@pytest.fixture
def moved(runs: Path, tmp_path: Path) -> Path:
    """A run whose data set is elsewhere."""
    folder = Path(shutil.copytree(runs / "seed0", tmp_path / "run"))
    plan = json.loads((folder / "run.json").read_text())
    plan["config"]["dataset"] = str(tmp_path / "data")
    (folder / "run.json").write_text(json.dumps(plan))
    return folder


def test_without_the_data_set_there_are_no_pictures(moved: Path) -> None:
    found = thumbnails(read_run(moved, "run"), [0])
    assert found.urls == {}
    assert found.note == "No pictures: the data set of this run is not at hand."


def test_pictures_of_other_data_are_not_shown(moved: Path) -> None:
    write_squares(moved.parent / "data" / "train", ["red", "blue"])
    write_squares(moved.parent / "data" / "test", ["red", "blue"], each=12)
    assert "is not the one that this run was tested on" in thumbnails(read_run(moved, "run"), [0]).note


def test_pictures_that_were_left_out_then_are_left_out_again(runs: Path, moved: Path) -> None:
    shutil.copytree(runs / "data", moved.parent / "data")
    (moved.parent / "data" / "test" / "blue" / "000.png").write_bytes(b"")  # sorts before the others
    assert len(thumbnails(read_run(moved, "run"), [3]).urls) == 1


def test_no_mistake_needs_no_data_set(moved: Path) -> None:
    assert thumbnails(read_run(moved, "run"), []).note == ""
