from __future__ import annotations

import pytest
from helpers import caprompt

from caprompt.cli.commands import listings
from caprompt.cli.console import out
from caprompt.errors import UnknownNameError


def listed(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    with out.capture() as capture:
        getattr(listings, name)(*words)
    return capture.get()


def test_methods_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sequential-prompt" in listed(capsys, "methods")
    assert "caprompt run --joint --method NAME" in listed(capsys, "methods")
    assert "align_epochs" in listed(capsys, "methods", "caprompt")
    with pytest.raises(UnknownNameError):
        listings.methods("magic")


def test_backbones_say_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    shown = listed(capsys, "backbones")
    assert "vit_mini_patch8_64" in shown
    assert "in package" in shown
    assert "vit_base_patch16_224" in shown


def test_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    shown = listed(capsys, "datasets")
    assert "digits" in shown
    assert "cifar100" in shown


def test_they_are_commands() -> None:
    assert "digits" in caprompt("datasets").stdout


@pytest.mark.parametrize(
    ("command", "words"), [("datasets", "Get this one from its makers"), ("methods", "The method whose options")]
)
def test_help_tells_what_may_be_given(command: str, words: str) -> None:
    assert words in " ".join(caprompt(command, "--help").stdout.split())
