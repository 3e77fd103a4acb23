from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import QUICK, caprompt_in_process, squares, write_squares

from caprompt import ContinualClassifier
from caprompt.cli.commands.predict import predict_files
from caprompt.data.sources import list_images
from caprompt.errors import DataError


def test_prints_a_table_or_json(workspace: Path) -> None:
    table = caprompt_in_process("predict", "pets", "test/red/060.png", cwd=workspace)
    assert table.returncode == 0
    assert "test/red/060.png" in table.stdout
    done = caprompt_in_process("predict", "pets", "test/red/060.png", "test/green", "--json", "--top", 1, cwd=workspace)
    predictions = json.loads(done.stdout)
    assert [Path(entry["image"]).name for entry in predictions] == ["060.png", "060.png", "061.png", "062.png"]
    assert all(len(entry["top"]) == 1 and entry["label"] in ("red", "green") for entry in predictions)
    auto = caprompt_in_process("predict", "pets", "test/red/060.png", "--json", "--cycles", "auto", cwd=workspace)
    assert json.loads(auto.stdout)[0]["passes"] == 1


def test_names_are_printed_verbatim(workspace: Path, quick: tuple[str, ...]) -> None:
    """Square brackets are markup to rich, but not in names of classes and files."""
    write_squares(workspace / "odd names", ["blue"])
    (workspace / "odd names" / "blue").rename(workspace / "odd names" / "dog[red]")
    done = caprompt_in_process("learn", "brackets", "odd names", "--backbone", "tiny.safetensors", *quick, cwd=workspace)
    assert "dog[red]" in done.stdout
    (workspace / "a[").mkdir()
    shutil.copy(workspace / "test" / "red" / "060.png", workspace / "a[" / "b].png")
    assert "a[/b].png" in caprompt_in_process("predict", "brackets", "a[/b].png", cwd=workspace).stdout


def test_unreadable_images_are_skipped_only_with_skip_bad(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red", "blue"]))
    write_squares(tmp_path, ["red"], each=2)
    (tmp_path / "red" / "bad.png").write_bytes(b"no image")
    paths = list_images([tmp_path])
    with pytest.raises(DataError, match=r"bad\.png"):
        predict_files(model, paths, 1, skip_bad=False, options={})
    predictions, skipped = predict_files(model, paths, 1, skip_bad=True, options={})
    assert [path.name for path, _ in predictions] == ["000.png", "001.png"]
    assert len(skipped) == 1
    with pytest.raises(DataError, match="none of the images can be read"):
        predict_files(model, [tmp_path / "red" / "bad.png"], 1, skip_bad=True, options={})
