from __future__ import annotations

from pathlib import Path

import pytest
from helpers import QUICK, squares, write_squares

from caprompt import ContinualClassifier, InputError
from caprompt.errors import DataError, OptionError
from caprompt.running import name_pictures, only_leftovers, open_for_learning, pictures_in, run_config


def test_flat_settings_become_a_run() -> None:
    config = run_config({"dataset": "digits", "tasks": [1, 4], "epochs": 3, "alpha": 1})
    assert config.tasks == (1, 4)
    assert config.options == {"epochs": 3, "alpha": 1}
    with pytest.raises(OptionError, match="unknown option 'alpha' for sequential-prompt"):
        run_config({"method": "sequential-prompt", "alpha": 1})
    with pytest.raises(OptionError, match="'validation' of run cannot be '2'"):
        run_config({"validation": 2})


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


def test_a_folder_that_is_no_model_is_never_written_into(tmp_path: Path, backbone: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert only_leftovers(tmp_path / "mine")
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_for_learning(tmp_path / "mine", {"backbone": str(backbone)}, resume=False, restart=False, device="cpu")
    with pytest.raises(InputError, match="is not a caprompt model"):
        open_for_learning(tmp_path / "mine" / "letter.txt", {}, resume=False, restart=False, device="cpu")
