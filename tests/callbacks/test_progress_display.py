from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers import ROOT, write_backbone

from caprompt.callbacks.events import Consolidating, Event, LearnEnded, LearnStarted, StepEnded, ignore_event
from caprompt.callbacks.progress_bar import NotebookBar, ProgressBar
from caprompt.callbacks.progress_display import is_notebook, show_progress

EVENTS: list[Event] = [
    LearnStarted(task=1, new_classes=("cat", "dog"), known_classes=(), images=10, epochs=2, first_epoch=0),
    StepEnded(epoch=0, images=5, losses={"ce": torch.tensor(0.5)}),
    Consolidating(),
    LearnEnded(classes=2, seconds=1.0),
]


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make this process look like a kernel of IPython, and return what its cell shows, version by version."""
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        return Handle()

    class Shell:
        kernel = object()

    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = Shell  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_scripts_and_terminals_of_ipython_are_no_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_notebook()
    package = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", package)
    for shell in (None, object()):
        package.get_ipython = lambda shell=shell: shell  # type: ignore[attr-defined]
        assert not is_notebook()


def test_choice_outside_of_notebooks() -> None:
    for show in (None, False):
        with show_progress(show) as callback:
            assert callback is ignore_event
    with show_progress(True) as callback:
        assert isinstance(callback, ProgressBar)
        assert callback.bars.disable, "there is no terminal"


def test_notebook_shows_the_bar_by_default_and_clears_it(outputs: list[str]) -> None:
    with show_progress(False) as callback:
        assert callback is ignore_event
    with show_progress(None) as callback:
        assert isinstance(callback, NotebookBar)
        for event in EVENTS:
            callback(event)
    assert "task 1: cat, dog" in outputs[0]
    assert "0/20" in outputs[0]
    assert any("5/20 class statistics and alignment" in text for text in outputs)
    assert outputs[-1] == ""
    assert not any("\x1b" in text for text in outputs), "a notebook does not move the cursor"


def test_notebook_bar_is_cleared_after_an_error(outputs: list[str]) -> None:
    def fail() -> None:
        with show_progress(None) as callback:
            callback(EVENTS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert outputs[-1] == ""


@pytest.mark.slow
def test_real_kernel_shows_progress(tmp_path: Path) -> None:
    reason = "nbclient and ipykernel are not installed; a stand-in for IPython is used in the tests above"
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    nbformat: Any = pytest.importorskip("nbformat", reason=reason)
    write_backbone(tmp_path / "tiny.safetensors")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from helpers import QUICK, squares\nfrom caprompt import ContinualClassifier\n"
        "import caprompt.callbacks.progress_bar as bars\n"
        "shown = []\n"
        "update = bars.NotebookBar.__call__\n"
        "def record(self, event):\n    update(self, event); shown.append(self.text.getvalue())\n"
        "bars.NotebookBar.__call__ = record\n"
        "model = ContinualClassifier(backbone='tiny.safetensors', **QUICK)\n"
        "model.learn(squares(['red', 'green']))\n"
        "print(any('task 1: green, red' in text for text in shown))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    outputs = client.execute().cells[0].outputs
    assert [each.text.strip() for each in outputs if each.output_type == "stream" and each.name == "stdout"] == ["True"]
    bars = [each for each in outputs if each.output_type == "display_data"]
    assert [each.data["text/plain"] for each in bars] == [""], "the bar is gone at the end"
