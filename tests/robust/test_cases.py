"""What has failed once, used again: a folder in `cases/` for each, with its material. Each must now be refused or accepted."""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from caprompt.checkpoint import folder as folder_module
from robust.attack import GOOD, judge, make_random
from robust.registry import get_attack
from robust.supervisor import CASES
from robust.worker import copy_material

FOLDERS = sorted(path.parent for path in CASES.glob("*/case.json"))


@cache
def prepare(kind: str, folder: Path) -> Any:
    target = folder / kind
    target.mkdir()
    return get_attack(kind).prepare(target)


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore after a test what an attack sets in the package: here it shares the process with other tests."""
    monkeypatch.setattr(folder_module, "MAX_READS", folder_module.MAX_READS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.skipif(sys.platform != "linux", reason="attacks are made for Linux")
@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_case_is_refused_or_accepted(folder: Path, prepared: Path, tmp_path: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    attack, working = get_attack(case["kind"]), tmp_path / "working"
    context = prepare(case["kind"], prepared)
    if (folder / "material").is_dir():
        copy_material(folder / "material", working)
    else:  # it was too large to be saved
        working.mkdir()
        attack.damage(context, working, make_random(case["seed"], case["number"]), case["number"])
    outcome, message = judge(lambda: attack.use(context, working))
    shutil.rmtree(working)
    assert outcome in GOOD, f"{case['description']}: {message}"
