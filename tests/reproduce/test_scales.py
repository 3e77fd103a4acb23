from __future__ import annotations

from pathlib import Path

import pytest

from caprompt.errors import InputError, OptionError, UnknownNameError
from caprompt.reproduce import scales as module
from caprompt.reproduce.scales import NO_BACKBONE, NO_DATA, OTHER_SCALE, scale, scales


def test_full_is_the_paper() -> None:
    full = scale("full")
    cell = full.cell("caprompt", {}, "cub200", "", 0, ())
    assert cell.config.options["batch_size"] == 64
    assert cell.config.options["epochs"] == 50
    assert cell.config.order == "natural"
    assert cell.config.tasks == 10
    assert full.columns(("cifar100", "cub200")) == ("cifar100", "cub200")
    assert full.cell("caprompt", {}, "cub200", "vit_base_patch16_224.dino", 0, ()).config.options["alpha"] == 1.0


def test_small_is_the_same_effort_for_every_method() -> None:
    options = [scale("small").cell(method, {}, "cifar100", "", 0, ()).config.options for method in ("caprompt", "ease", "l2p")]
    assert {each["epochs"] for each in options} == {5}
    assert scale("small", backbone="deit_base_patch16_224.fb_in1k").backbone == "deit_base_patch16_224.fb_in1k"


def test_settings_reach_the_methods_that_have_them() -> None:
    tiny = scale("tiny", settings={"alpha": 3.0, "per_class": 4})
    assert tiny.cell("caprompt", {}, "digits", "", 0, ()).config.options["alpha"] == 3.0
    assert tiny.cell("caprompt", {"alpha": 0.0}, "digits", "", 0, ()).config.options["alpha"] == 0.0
    plain = tiny.cell("l2p", {}, "digits", "", 0, ()).config
    assert "alpha" not in plain.options
    assert plain.per_class == 4


def test_what_stands_in_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CAPROMPT_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert scale("tiny").obstacle("digits", "") == ""
    assert scale("tiny").obstacle("cifar100", "") == OTHER_SCALE
    assert scale("tiny").obstacle("digits", "vit_base_patch16_224.dino") == OTHER_SCALE
    assert scale("small").obstacle("cub200", "") == NO_DATA
    (tmp_path / "cifar-100-python").mkdir()
    monkeypatch.setattr(module, "backbone_at_hand", lambda name: "deit" in name)
    assert scale("small").obstacle("cifar100", "") == ""
    assert scale("full").obstacle("cifar100", "") == NO_BACKBONE


def test_bad_input() -> None:
    with pytest.raises(UnknownNameError, match="unknown scale 'smal' \\(did you mean 'small'"):
        scale("smal")
    with pytest.raises(OptionError, match="'seeds' must be at least 1"):
        scale("tiny", seeds=0)
    with pytest.raises(InputError, match=r"there is no backbone 'nowhere\.pth'"):
        scale("tiny", backbone="nowhere.pth")
    assert list(scales()) == ["full", "small", "tiny"]
