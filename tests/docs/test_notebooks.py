"""The notebooks run from top to bottom, and their outputs are part of the files."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from helpers import ROOT
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])/\w+/\w+")


def test_both_are_there() -> None:
    assert [path.name for path in NOTEBOOKS] == ["compare-methods.ipynb", "teach-a-classifier.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_saved_as_it_was_executed(path: Path) -> None:
    """Executed from top to bottom, without errors and paths of a machine: jupyter execute --inplace docs/notebooks/*.ipynb."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert all(output.output_type in ("display_data", "execute_result", "stream") for output in outputs)
    texts = [
        text for output in outputs for text in (output.get("text"), *map(output.get("data", {}).get, ("text/plain", "text/html")))
    ]
    shown = re.sub(r"data:[^\"']+", "", "\n".join(filter(None, texts)))  # without images
    assert not ABSOLUTE_PATH.findall(shown)
