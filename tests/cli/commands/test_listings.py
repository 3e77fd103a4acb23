from __future__ import annotations

from pathlib import Path

import pytest
from helpers import caprompt_in_process

from caprompt.cli.commands import listings
from caprompt.cli.console import out
from caprompt.errors import UnknownNameError


def capture_output(name: str, *words: str) -> str:
    with out.capture() as capture:
        getattr(listings, name)(*words)
    return capture.get()


def test_methods_and_their_options() -> None:
    assert "sequential-prompt" in capture_output("methods")
    assert "caprompt run --joint --method NAME" in capture_output("methods")
    assert "align_epochs" in capture_output("methods", "caprompt")
    with pytest.raises(UnknownNameError):
        listings.methods("magic")


def test_backbones_and_where_they_are() -> None:
    text = capture_output("backbones")
    assert "vit_mini_patch8_64" in text
    assert "in package" in text
    assert "vit_base_patch16_224" in text


def test_datasets() -> None:
    text = capture_output("datasets")
    assert "digits" in text
    assert "cifar100" in text


def test_listings_are_commands(tmp_path: Path) -> None:
    assert "digits" in caprompt_in_process("datasets", cwd=tmp_path).stdout


@pytest.mark.parametrize(("command", "words"), [("datasets", "Name of a dataset to download"), ("methods", "Method whose options")])
def test_help_describes_the_argument(tmp_path: Path, command: str, words: str) -> None:
    assert words in " ".join(caprompt_in_process(command, "--help", cwd=tmp_path).stdout.split())
