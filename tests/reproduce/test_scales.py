from __future__ import annotations

from pathlib import Path

import pytest

from caprompt.errors import InputError, OptionError, UnknownNameError
from caprompt.reproduce import scales as module
from caprompt.reproduce.scales import NO_BACKBONE, NO_DATA, OTHER_SCALE, get_scale, load_scales


def test_full_scale_has_the_settings_of_the_paper() -> None:
    full = get_scale("full")
    cell = full.build_cell("caprompt", {}, "cub200", "", 0, ())
    assert cell.config.options["batch_size"] == 64
    assert cell.config.options["epochs"] == 50
    assert cell.config.order == "natural"
    assert cell.config.tasks == 10
    assert full.list_datasets(("cifar100", "cub200")) == ("cifar100", "cub200")
    assert full.build_cell("caprompt", {}, "cub200", "vit_base_patch16_224.dino", 0, ()).config.options["alpha"] == 0.1


def test_small_scale_has_the_same_epochs_for_every_method() -> None:
    options = [
        get_scale("small").build_cell(method, {}, "cifar100", "", 0, ()).config.options for method in ("caprompt", "ease", "l2p")
    ]
    assert {each["epochs"] for each in options} == {5}
    assert get_scale("small", backbone="deit_base_patch16_224.fb_in1k").backbone == "deit_base_patch16_224.fb_in1k"


def test_settings_apply_to_methods_that_have_them() -> None:
    tiny = get_scale("tiny", settings={"modulation": 0.1, "per_class": 4})
    assert tiny.build_cell("caprompt", {}, "digits", "", 0, ()).config.options["modulation"] == 0.1
    assert tiny.build_cell("caprompt", {"modulation": 0.0}, "digits", "", 0, ()).config.options["modulation"] == 0.0
    plain = tiny.build_cell("l2p", {}, "digits", "", 0, ()).config
    assert "modulation" not in plain.options
    assert plain.per_class == 4


def test_obstacles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_scale("tiny").find_obstacle("digits", "") == ""
    assert get_scale("tiny").find_obstacle("cifar100", "") == OTHER_SCALE
    assert get_scale("tiny").find_obstacle("digits", "vit_base_patch16_224.dino") == OTHER_SCALE
    assert get_scale("small").find_obstacle("cub200", "") == NO_DATA
    (tmp_path / "cifar-100-python").mkdir()
    monkeypatch.setattr(module, "has_backbone", lambda name: "deit" in name)
    assert get_scale("small").find_obstacle("cifar100", "") == ""
    assert get_scale("full").find_obstacle("cifar100", "") == NO_BACKBONE


def test_bad_input() -> None:
    with pytest.raises(UnknownNameError, match="unknown scale 'smal' \\(did you mean 'small'"):
        get_scale("smal")
    with pytest.raises(OptionError, match="'seeds' must be at least 1"):
        get_scale("tiny", seeds=0)
    with pytest.raises(InputError, match=r"there is no backbone 'nowhere\.pth'"):
        get_scale("tiny", backbone="nowhere.pth")
    assert list(load_scales()) == ["full", "small", "tiny"]
