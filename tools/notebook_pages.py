"""Write every notebook of docs/notebooks as a page beside it, with its outputs and a link to the notebook.

python tools/notebook_pages.py [--docs docs]

The pages are not committed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def write_pages(folder: Path) -> list[Path]:
    """Write a page for each notebook in a folder, and return them."""
    pages = []
    for path in sorted(folder.glob("*.ipynb")):
        pages.append(path.with_suffix(".md"))
        pages[-1].write_text(make_page(json.loads(path.read_text(encoding="utf-8")), path.name), encoding="utf-8")
    return pages


def make_page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown.

    >>> cells = [{"cell_type": "markdown", "source": ["# Add"]}, {"cell_type": "code", "source": "1 + 1", "outputs": []}]
    >>> print(make_page({"cells": cells}, "add.ipynb").replace("\\n\\n", "\\n"), end="")
    # Add
    This page shows [a notebook](add.ipynb), which you can download and run.
    ```python
    1 + 1
    ```
    """
    parts = []
    for cell in notebook["cells"]:
        text = join_lines(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif cell["cell_type"] == "code" and text:
            parts += [f"```python\n{text}\n```", *(part for output in cell["outputs"] for part in make_output(output))]
    title, _, rest = parts[0].partition("\n")
    link = f"This page shows [a notebook]({name}), which you can download and run."
    return "\n\n".join(part for part in [title, link, rest.strip(), *parts[1:]] if part) + "\n"


def make_output(output: dict[str, Any]) -> list[str]:
    """Return an output of a cell as Markdown: its image, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        return [f"![Output of the cell above](data:image/png;base64,{join_lines(data['image/png']).replace(chr(10), '')})"]
    text = join_lines(output.get("text", data.get("text/plain", ""))).strip("\n")
    return [f"```text\n{text}\n```"] if text else []


def join_lines(source: str | list[str]) -> str:
    """Return the text of a cell, which is kept as one string or as lines."""
    return source if isinstance(source, str) else "".join(source)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description="Write the notebooks as pages.")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    print(f"saved {len(write_pages(parser.parse_args().docs / 'notebooks'))} pages of notebooks")


if __name__ == "__main__":
    main()
