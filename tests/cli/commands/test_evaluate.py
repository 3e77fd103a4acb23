from __future__ import annotations

import json
from pathlib import Path

from helpers import assert_refused, caprompt_in_process


def test_prints_a_table_or_json(workspace: Path) -> None:
    table = caprompt_in_process("evaluate", "pets", "test", cwd=workspace)
    assert table.returncode == 0, table.stderr
    assert "accuracy, in percent" in table.stdout
    assert "passes per image" in table.stdout
    evaluation = json.loads(caprompt_in_process("evaluate", "pets", "test", "--json", "--cycles", 2, cwd=workspace).stdout)
    assert evaluation["images"] == 6
    assert evaluation["mean_passes"] == 2
    assert evaluation["protocol"].startswith("honest: ")


def test_given_task_is_marked(workspace: Path) -> None:
    done = caprompt_in_process("evaluate", "pets", "test", "--give-task", cwd=workspace)
    assert "protocol=oracle" in done.stdout
    assert "protocol oracle: " in done.stdout


def test_class_that_was_not_learned(workspace: Path, blue_cyan: Path) -> None:
    assert_refused(workspace, ["evaluate", "pets", "bad"], "class 'blue' has not been learned", caprompt_in_process)
