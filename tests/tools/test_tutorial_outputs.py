from __future__ import annotations

import doctest
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT

from caprompt.cli.console import out
from caprompt.methods import list_methods

PAGE = """# A page

```console
$ caprompt datasets digits
something old
$ caprompt info none  # refused
$ echo one && echo two
```

<!-- file: numbers.py -->
```python
three = 3
```

```python
import pathlib

assert pathlib.Path("numbers.py").read_text() == "three = 3\\n"
```

<!-- not run: there is no such command -->
```console
$ caprompt dance
as it was
```
The end.
"""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "tutorial_outputs", raising=False)
    import tutorial_outputs

    return tutorial_outputs


def test_examples(tool: ModuleType) -> None:
    result = doctest.testmod(tool)
    assert result.attempted
    assert not result.failed


def test_outputs_are_replaced_and_everything_else_stays(tool: ModuleType, tmp_path: Path) -> None:
    fresh = tool.run_page(PAGE, tmp_path)
    assert "something old" not in fresh
    assert "$ caprompt datasets digits\ndigits: " in fresh
    assert "$ caprompt info none  # refused\ncaprompt: " in fresh
    assert "$ echo one && echo two\none\ntwo\n```" in fresh
    assert fresh.endswith(PAGE[PAGE.index("<!-- file") :])
    assert tool.run_page(fresh, tmp_path) == fresh


def test_a_command_that_fails_is_an_error(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="'caprompt info none' ended with exit status 2"):
        tool.run_page("```console\n$ caprompt info none\n```\n", tmp_path)
    with pytest.raises(RuntimeError, match="ended with exit status 0"):
        tool.run_page("```console\n$ caprompt datasets digits  # refused\n```\n", tmp_path)


def test_the_process_is_left_as_it_was(tool: ModuleType, tmp_path: Path) -> None:
    def describe() -> object:
        return dict(os.environ), list(sys.path), sorted(list_methods()), out._width, Path.cwd()

    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\n[project.entry-points."caprompt.methods"]\nx = "xx"'
    )
    (tmp_path / "xx.py").write_text("from caprompt.methods.linear import Linear\nfrom caprompt.methods.registry import register\n")
    with (tmp_path / "xx.py").open("a") as file:
        file.write('@register("x")\nclass X(Linear):\n    summary = "x"\n')
    before = describe()
    fresh = tool.run_page("```console\n$ pip install --editable .\n$ caprompt methods x\n```\n", tmp_path)
    assert "options of x, for --set" in fresh
    assert describe() == before
