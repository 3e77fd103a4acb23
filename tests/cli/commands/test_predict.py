from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, squares, write_squares

from caprompt import ContinualClassifier, InputError
from caprompt.cli.commands.predict import predict_files
from caprompt.data.sources import list_images
from caprompt.errors import DataError


def test_pictures_are_found_at_any_depth_and_in_order(tmp_path: Path) -> None:
    write_squares(tmp_path / "a" / "deep", ["red"], each=2)
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert [path.name for path in list_images([tmp_path / "a", Path("single.png")])] == ["000.png", "001.png", "single.png"]
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="there is no image in the folder"):
        list_images([tmp_path / "void"])
    with pytest.raises(InputError, match="no image was given"):
        list_images([])


def test_unreadable_pictures_are_skipped_only_when_asked(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "blue"]))
    write_squares(tmp_path, ["red"], each=2)
    (tmp_path / "red" / "bad.png").write_bytes(b"no picture")
    paths = list_images([tmp_path])
    with pytest.raises(DataError, match=r"bad\.png"):
        predict_files(model, paths, 1, skip_bad=False, options={})
    named, skipped = predict_files(model, paths, 1, skip_bad=True, options={})
    assert [path.name for path, _ in named] == ["000.png", "001.png"]
    assert len(skipped) == 1
    with pytest.raises(DataError, match="none of the images can be read"):
        predict_files(model, [tmp_path / "red" / "bad.png"], 1, skip_bad=True, options={})
