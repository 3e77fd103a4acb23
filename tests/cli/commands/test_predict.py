from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, squares, write_squares

from caprompt import ContinualClassifier, InputError
from caprompt.cli.commands.predict import name_pictures
from caprompt.data.sources import pictures_in
from caprompt.errors import DataError


def test_pictures_are_found_at_any_depth_and_in_order(tmp_path: Path) -> None:
    write_squares(tmp_path / "a" / "deep", ["red"], each=2)
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert [path.name for path in pictures_in([tmp_path / "a", Path("single.png")])] == ["000.png", "001.png", "single.png"]
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="there is no image in the folder"):
        pictures_in([tmp_path / "void"])
    with pytest.raises(InputError, match="no image was given"):
        pictures_in([])


def test_unreadable_pictures_are_skipped_only_when_asked(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "blue"]))
    write_squares(tmp_path, ["red"], each=2)
    (tmp_path / "red" / "bad.png").write_bytes(b"no picture")
    paths = pictures_in([tmp_path])
    with pytest.raises(DataError, match=r"bad\.png"):
        name_pictures(model, paths, 1, skip_bad=False, options={})
    named, skipped = name_pictures(model, paths, 1, skip_bad=True, options={})
    assert [path.name for path, _ in named] == ["000.png", "001.png"]
    assert len(skipped) == 1
    with pytest.raises(DataError, match="none of the images can be read"):
        name_pictures(model, [tmp_path / "red" / "bad.png"], 1, skip_bad=True, options={})
