from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grids import make_fake_evidence

from caprompt.reproduce.writers import format_command, format_section, write_target


def test_every_format_is_written(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table3", tmp_path / "cells")
    write_target(evidence, evidence.target.present(evidence), tmp_path / "table3")
    names = sorted(path.name for path in (tmp_path / "table3").iterdir())
    assert names == [f"table3.{suffix}" for suffix in ("csv", "json", "md", "png", "svg", "tex")]
    page = (tmp_path / "table3" / "table3.md").read_text()
    for words in (
        "# Table 3",
        "| Base | published | leaks |",
        "| Base | ours | honest |",
        "(table3.svg)",
        "ImageNet-R: other scale",
    ):
        assert words in page
    assert "`caprompt reproduce table3 --scale tiny --seeds 2`" in page
    assert "Scale tiny: the embedded backbone" in page


def test_protocol_released_is_in_the_title_and_the_command(tmp_path: Path) -> None:
    evidence = make_fake_evidence("table3", tmp_path, protocol="released")
    assert format_command(evidence).endswith("--protocol released")
    text = format_section(evidence, evidence.target.present(evidence), "there/", level=2)
    assert text.startswith("## Table 3")
    assert "RELEASED" in text.splitlines()[0]
    assert "(there/table3.svg)" in text


def test_the_command_lists_overrides_of_the_scale(tmp_path: Path) -> None:
    evidence = make_fake_evidence("comparison", tmp_path)
    other = replace(evidence.scale, backbone="/weights/vit.dino.safetensors", settings={**evidence.scale.settings, "epochs": 7})
    changed = replace(evidence, scale=other)
    assert (
        format_command(changed)
        == "caprompt reproduce comparison --scale tiny --seeds 2 --backbone vit.dino.safetensors --set epochs=7"
    )
    assert "Backbone vit.dino where" in format_section(changed, evidence.target.present(evidence), "")


def test_the_preset_of_a_target_is_stated(tmp_path: Path) -> None:
    evidence = make_fake_evidence("comparison", tmp_path)
    full = replace(evidence, scale=replace(evidence.scale, preset="paper"))
    assert "preset budget" in format_section(full, evidence.target.present(evidence), "")
