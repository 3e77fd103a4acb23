from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers import QUICK, squares, write_backbone

from caprompt import ContinualClassifier
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.checkpoint import CONFIG
from caprompt.checkpoint.model import (
    IN_PROGRESS,
    finish_killed_save,
    get_options_for_device,
    get_saved_options,
    has_stopped_call,
    select_by_prefix,
)
from caprompt.errors import OptionError
from caprompt.methods.options import Options
from caprompt.utils.files import READY


def test_checkpoint_of_a_finished_call_does_not_count(tmp_path: Path, backbone: Path) -> None:
    """A kill after the model is saved and before its checkpoint is removed leaves no stopped call."""
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model._write(tmp_path / IN_PROGRESS, {"epochs_done": 1, "digest": "", "new_classes": []}, {})
    assert has_stopped_call(tmp_path)
    copy = shutil.copytree(tmp_path / IN_PROGRESS, tmp_path / ".copy")
    model.learn(squares(["red"]), checkpoint_dir=tmp_path)
    assert not has_stopped_call(tmp_path)
    copy.rename(tmp_path / IN_PROGRESS)
    assert not has_stopped_call(tmp_path)


def test_killed_save_is_finished(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model._write(tmp_path / IN_PROGRESS, {"epochs_done": 1, "digest": "", "new_classes": []}, {})
    finish_killed_save(tmp_path)
    assert has_stopped_call(tmp_path), "nothing was saved since"
    copy = shutil.copytree(tmp_path / IN_PROGRESS, tmp_path / ".copy")
    model.learn(squares(["red"]), checkpoint_dir=tmp_path)
    copy.rename(tmp_path / IN_PROGRESS)
    ready = tmp_path / READY  # where the files of a save are until all of them are there
    ready.mkdir()
    content = (tmp_path / CONFIG).read_bytes()
    (tmp_path / CONFIG).rename(ready / CONFIG)
    finish_killed_save(tmp_path)
    assert (tmp_path / CONFIG).read_bytes() == content
    assert not ready.exists()
    assert not (tmp_path / IN_PROGRESS).exists()
    assert ContinualClassifier.load(tmp_path).classes == ["red"]


def test_file_named_like_a_packaged_backbone_is_loaded_by_its_path(tmp_path: Path) -> None:
    file = write_backbone(tmp_path / f"{DEFAULT_BACKBONE}.safetensors")
    model = ContinualClassifier(backbone=file, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red"]), checkpoint_dir=tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m").backbone.path == file


def test_select_by_prefix() -> None:
    assert select_by_prefix({"a.x": torch.zeros(1), "b.x": torch.ones(1)}, "b.") == {"x": torch.ones(1)}


def test_added_options_get_the_value_that_older_models_were_trained_with() -> None:
    class Added(Options):
        new: int = 3
        before_added: ClassVar[Mapping[str, Any]] = {"new": 0}

    class Derived(Added):
        other: int = 4
        before_added: ClassVar[Mapping[str, Any]] = {"other": 1}

    assert Derived.complete_saved({"epochs": 2}) == {"epochs": 2, "new": 0, "other": 1}
    assert Derived.complete_saved({"new": 7}) == {"new": 7, "other": 1}


def test_retired_options_are_accepted_at_their_retired_value_only(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    options = model.method.options.model_dump(mode="json")
    older = {name: value for name, value in options.items() if name != "sure"}  # which was added later
    assert get_saved_options({"method": "caprompt", "options": {**older, "patches": False}}) == options
    with pytest.raises(OptionError, match="unknown option 'patches'"):
        get_saved_options({"method": "caprompt", "options": {**older, "patches": True}})


def test_fp8_becomes_auto_on_a_device_without_it(backbone: Path) -> None:
    options = ContinualClassifier(backbone=backbone, **QUICK).method.options.model_dump(mode="json")  # type: ignore[arg-type]
    for saved, expected in (("fp8", "auto"), ("bf16", "bf16"), ("auto", "auto")):
        config = {"method": "caprompt", "options": {**options, "precision": saved}}
        assert get_options_for_device(torch.device("cpu"), config)["precision"] == expected
