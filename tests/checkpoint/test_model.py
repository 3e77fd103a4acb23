from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers import QUICK, squares, write_backbone

from caprompt import ContinualClassifier
from caprompt.backbones.weights import DEFAULT_BACKBONE
from caprompt.checkpoint.model import IN_PROGRESS, has_stopped_call, options_for_device, saved_options, select_by_prefix
from caprompt.errors import OptionError


def test_a_checkpoint_that_was_overtaken_does_not_count(tmp_path: Path, backbone: Path) -> None:
    """A kill after the model is saved and before its checkpoint is removed: nothing was stopped."""
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    model._write(tmp_path / IN_PROGRESS, {"epochs_done": 1}, {})
    assert has_stopped_call(tmp_path)
    kept = shutil.copytree(tmp_path / IN_PROGRESS, tmp_path / "kept")
    model.learn(squares(["red"]), folder=tmp_path)
    assert not has_stopped_call(tmp_path)
    kept.rename(tmp_path / IN_PROGRESS)
    assert not has_stopped_call(tmp_path)


def test_a_file_named_like_a_packaged_backbone_is_still_found_by_its_path(tmp_path: Path) -> None:
    file = write_backbone(tmp_path / f"{DEFAULT_BACKBONE}.safetensors")
    model = ContinualClassifier(backbone=file, **QUICK)  # type: ignore[arg-type]
    model.learn(squares(["red"]), folder=tmp_path / "m")
    assert ContinualClassifier.load(tmp_path / "m").backbone.path == file


def test_tensors_are_taken_by_prefix() -> None:
    assert select_by_prefix({"a.x": torch.zeros(1), "b.x": torch.ones(1)}, "b.") == {"x": torch.ones(1)}


def test_a_model_saved_with_an_option_that_is_no_more_is_read_if_nothing_is_lost(tmp_path: Path, backbone: Path) -> None:
    model = ContinualClassifier(backbone=backbone, **QUICK)  # type: ignore[arg-type]
    options = model.method.options.model_dump(mode="json")
    older = {name: value for name, value in options.items() if name != "sure"}  # which came later
    assert saved_options({"method": "caprompt", "options": {**older, "patches": False}}) == options
    with pytest.raises(OptionError, match="unknown option 'patches'"):
        saved_options({"method": "caprompt", "options": {**older, "patches": True}})


def test_numbers_that_a_device_does_not_have_give_way_to_its_own(backbone: Path) -> None:
    options = ContinualClassifier(backbone=backbone, **QUICK).method.options.model_dump(mode="json")  # type: ignore[arg-type]
    for saved, found in (("fp8", "auto"), ("bf16", "bf16"), ("auto", "auto")):
        config = {"method": "caprompt", "options": {**options, "precision": saved}}
        assert options_for_device(torch.device("cpu"), config)["precision"] == found
