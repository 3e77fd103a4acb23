from __future__ import annotations

import doctest
import sys
from types import ModuleType

import pytest
from helpers import ROOT


@pytest.fixture
def code_blocks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "code_blocks", raising=False)
    import code_blocks

    return code_blocks


def test_examples(code_blocks: ModuleType) -> None:
    result = doctest.testmod(code_blocks)
    assert result.attempted
    assert not result.failed


def test_blocks_of_a_list_and_their_marks(code_blocks: ModuleType) -> None:
    page = "<!-- not run: needs Slurm -->\n```\nsbatch\n```\n\n1. item\n   ```json\n   {}\n   ```\n"
    first, second = code_blocks.find_blocks(page)
    assert (first.reason, first.text, first.line) == ("needs Slurm", "sbatch\n", 1)
    assert (second.kind, second.text, second.reason, second.file) == ("json", "   {}\n", None, None)


def test_a_block_without_an_end_is_an_error(code_blocks: ModuleType) -> None:
    with pytest.raises(ValueError, match="the block at line 2 has no end"):
        code_blocks.find_blocks("text\n```python\nx = 1\n")
