"""Run the commands of tutorial pages and write what they print into the pages.

    python tools/tutorial_outputs.py docs/tutorials/photos.md docs/tutorials/method.md

Every page is run in a new folder, from top to bottom: blocks marked as files are written, `python` blocks are executed, and in
`console` blocks the lines after each `$ command` are replaced by its output. A command that is to be refused ends with
`# refused`. tests/docs/test_tutorials.py runs the same and compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from code_blocks import Block, find_blocks

from caprompt.cli import console
from caprompt.cli.app import main as run_caprompt
from caprompt.methods import registry
from caprompt.utils.files import read_toml

WIDTH = 80  # columns of a terminal
REFUSED = "# refused"
PAGES_PORT = "http://127.0.0.1:8000"
DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?")
SECONDS = re.compile(r"\b[\d.]+ ?(?:s|seconds?|min)\b")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Session:
    """A folder in which commands are run one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}  # of python blocks

    def run(self, command: str) -> str:
        """Run one command and return what it prints, without blanks at the ends of lines."""
        words = shlex.split(command, comments=True)
        if words[:2] == ["caprompt", "serve"]:
            status, output = 0, self._serve(words[2:])
        elif words[:1] == ["caprompt"]:
            status, output = self._run_caprompt(words[1:])
        elif words == ["pip", "install", "--editable", "."]:
            status, output = 0, self._install()
        else:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            environment = {**os.environ, "PYTEST_ADDOPTS": "", "PATH": path, "PYTHONPATH": str(self.folder), "COLUMNS": str(WIDTH)}
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
            )
            status, output = done.returncode, done.stdout + done.stderr
        if status != (2 if command.endswith(REFUSED) else 0):
            raise RuntimeError(f"'{command}' ended with exit status {status}:\n{output}")
        return "".join(f"{line.rstrip()}\n" for line in output.splitlines()).strip("\n")

    def execute(self, code: str) -> None:
        """Execute a python block in the folder; names of earlier blocks are known."""
        with _chdir(self.folder):
            exec(code, self.names)

    def _run_caprompt(self, words: Sequence[str]) -> tuple[int, str]:
        """Run a command in this process: importing torch anew takes longer than most commands."""
        output, status = io.StringIO(), 0
        with _chdir(self.folder), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                run_caprompt(words)
            except SystemExit as error:
                status = int(error.code or 0)
        return status, output.getvalue()

    def _serve(self, words: Sequence[str]) -> str:
        """Start a server on any free port, load its page, and stop it."""
        command = [sys.executable, "-m", "caprompt", "serve", *words, "--port", "0", "--no-open"]
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                line = server.stdout.readline()
                address = re.findall(r"http://\S+", line)[0]
                with urllib.request.urlopen(address, timeout=30) as page:
                    assert b"<html" in page.read()
            finally:
                server.terminate()
        return line.replace(address.rstrip("/"), PAGES_PORT)

    def _install(self) -> str:
        """Make the entry points of the folder's package known, as an editable installation does, but for this session only."""
        project = read_toml(self.folder / "pyproject.toml")["project"]
        info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
        groups = project["entry-points"].items()
        lines = [
            line for group, points in groups for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        sys.path.insert(0, str(self.folder))
        registry._load_entry_points.cache_clear()
        return ""


@contextlib.contextmanager
def open_session(folder: Path) -> Iterator[Session]:
    """Yield a session on a machine without other backbones, and without a network; undo its changes to this process."""
    empty, path = folder / ".cache", list(sys.path)
    variables = {"CAPROMPT_BACKBONES": str(empty), "HF_HUB_CACHE": str(empty), "HF_HUB_OFFLINE": "1"}
    before = {name: os.environ.get(name) for name in variables}
    methods, modules, widths = dict(registry._REGISTRY), set(sys.modules), (console.out._width, console.err._width)
    os.environ.update(variables)
    console.out.width = console.err.width = WIDTH
    try:
        yield Session(folder)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        console.out._width, console.err._width = widths
        sys.path[:] = path
        for name in set(registry._REGISTRY) - set(methods):
            module = registry._REGISTRY[name].__module__
            if not module.startswith("caprompt."):
                del registry._REGISTRY[name]
                if module not in modules:
                    sys.modules.pop(module, None)
        registry._load_entry_points.cache_clear()


def run_page(page: str, folder: Path) -> str:
    """Run a page in an empty folder; return it with the outputs of this run."""
    lines = page.splitlines()
    fresh, done = list[str](), 0
    with open_session(folder) as session:
        for block in find_blocks(page):
            end = block.line + block.text.count("\n") + 1
            fresh += [*lines[done : block.line + 1], *_run_block(block, session)]
            done = end
    return "\n".join([*fresh, *lines[done:]]) + "\n"


def _run_block(block: Block, session: Session) -> list[str]:
    """Run a block; return its lines with the outputs of this run."""
    lines = block.text.splitlines()
    if block.file is not None:
        (session.folder / block.file).write_text(block.text, encoding="utf-8")
    elif block.reason is None and block.kind == "python":
        session.execute(block.text)
    elif block.reason is None and block.kind == "console":
        lines = []
        for line in (line for line in block.text.splitlines() if line.startswith("$ ")):
            lines += [line, *session.run(line[2:]).splitlines()]
    return lines


def find_difference(shown: str, fresh: str) -> str | None:
    """Return the first line that differs in more than dates, seconds, widths and the last digits of numbers; None if none does.

    >>> find_difference("cat  0.91\\n2026-01-02 dog", "cat 0.88\\n2026-03-04 dog")
    >>> find_difference("cat  0.91", "dog  0.91")
    'cat  0.91 -> dog  0.91'
    >>> find_difference("12 images", "13 images")
    '12 images -> 13 images'
    """
    one, other = ([line for line in text.splitlines() if line.strip(" ─")] for text in (shown, fresh))
    for index in range(max(len(one), len(other))):
        pair = [lines[index] if index < len(lines) else "(no line)" for lines in (one, other)]
        if not _is_alike(*pair):
            return " -> ".join(pair)
    return None


def _is_alike(shown: str, fresh: str) -> bool:
    first, second = (" ".join(SECONDS.sub("TIME", DATE.sub("DATE", line)).split()) for line in (shown, fresh))
    numbers = list(zip(NUMBER.findall(first), NUMBER.findall(second), strict=False))
    return NUMBER.sub("#", first) == NUMBER.sub("#", second) and all(_is_near(*pair) for pair in numbers)


def _is_near(shown: str, fresh: str) -> bool:
    """Return whether numbers are equal; those with a decimal point, up to a tenth or five percent."""
    return shown == fresh or ("." in shown and abs(float(shown) - float(fresh)) <= max(0.1, 0.05 * float(shown)))


@contextlib.contextmanager
def _chdir(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def main(paths: Sequence[str]) -> None:
    """Run pages and write their outputs into them."""
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as folder:
            fresh = run_page(path.read_text(encoding="utf-8"), Path(folder).resolve())
        path.write_text(fresh, encoding="utf-8")
        print(f"written to {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
