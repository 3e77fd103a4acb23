from __future__ import annotations

from pathlib import Path

import pytest

from caprompt.errors import InputError
from caprompt.utils.paths import expand_user


def test_home_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_user("~/photos") == tmp_path / "photos"
    assert expand_user(Path("photos/~x")) == Path("photos/~x")


def test_unknown_user_raises_unless_there_is_such_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'~nosuchuser/x' is in the home folder of a user who does not exist"):
        expand_user("~nosuchuser/x")
    Path("~tmp.png").touch()
    assert expand_user("~tmp.png") == Path("~tmp.png")
