"""Code blocks of Markdown pages, with their kind and the comment above them.

A comment on the line above a block says what is to be done with it:

    <!-- file: my_method.py -->       it is the content of that file
    <!-- not run: needs Slurm -->     it is not run, for this reason
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Block", "find_blocks", "list_commands"]

FENCE = re.compile(r"^ *```+(.*)$")
MARKER = re.compile(r"^ *<!-- (file|not run): (.+?) -->$")


@dataclass(frozen=True)
class Block:
    """A block of code: its kind, its text, the number of the line of its opening fence (from 0), and its marks."""

    kind: str
    text: str
    line: int
    file: str | None = None
    reason: str | None = None  # for not being run


def find_blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order.

    >>> find_blocks("text\\n<!-- file: a.py -->\\n```python\\nx = 1\\n```")
    [Block(kind='python', text='x = 1\\n', line=2, file='a.py', reason=None)]
    """
    lines, blocks, start = page.splitlines(), [], None
    for number, line in enumerate(lines):
        if not (fence := FENCE.match(line)):
            continue
        if start is None:
            start, kind = number, fence[1].strip()
            continue
        marker = MARKER.match(lines[start - 1]) if start else None
        marks = {"file": "file", "not run": "reason"}
        text = "".join(f"{inner}\n" for inner in lines[start + 1 : number])
        blocks.append(Block(kind, text, start, **({marks[marker[1]]: marker[2]} if marker else {})))
        start = None
    if start is not None:
        raise ValueError(f"the block at line {start + 1} has no end")
    return blocks


def list_commands(block: Block) -> list[str]:
    """Return the commands of a console block: what follows `$ `; or of a block without prompts: its lines.

    >>> list_commands(Block("console", "$ ls\\nphotos\\n$ pwd\\n/home\\n", 0))
    ['ls', 'pwd']
    >>> list_commands(Block("", "caprompt run \\\\\\n  --seed 3\\nmake test\\n", 0))
    ['caprompt run   --seed 3', 'make test']
    """
    if block.kind == "console":
        return [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [line.strip() for line in block.text.replace("\\\n", "").splitlines() if line.strip()]
