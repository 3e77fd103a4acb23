"""The client: one file of the standard library, whose example works."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, write_squares
from serve.running import pngs, run_server

import caprompt.client
from caprompt.client import Client, ServerError

FILE = Path(caprompt.client.__file__)


def test_it_needs_the_standard_library_only(tmp_path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported <= sys.stdlib_module_names
    copy = tmp_path / "client.py"
    copy.write_bytes(FILE.read_bytes())
    script = "import client; print(client.Client('https://x.example/caprompt')._base)"
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "/caprompt/api/v1"


def read_example() -> str:
    """Return the code of the module's docstring."""
    return "\n".join(line.strip() for line in (caprompt.client.__doc__ or "").splitlines() if line.startswith("    "))


def test_the_page_has_the_same_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "serve.md").read_text(), re.DOTALL)
    assert [block.split() for block in blocks] == [read_example().split()]


@pytest.mark.slow
def test_its_example_runs(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_squares(tmp_path / "images", ["red", "green"], each=3)
    for number in (1, 2):
        (tmp_path / "images" / "red" / f"00{number}.png").rename(tmp_path / f"cat{number}.jpg")
        (tmp_path / "images" / "green" / f"00{number}.png").rename(tmp_path / f"dog{number}.jpg")
    (tmp_path / "images" / "red" / "000.png").rename(tmp_path / "new.jpg")
    monkeypatch.chdir(tmp_path)
    example = read_example()
    assert example.count("client.") >= 2
    with run_server(tmp_path / "pets", backbone=str(backbone)) as server:
        code = re.sub(r"http://127.0.0.1:8000", server.url.rstrip("/"), example)
        assert code != example
        lines = code.splitlines()
        names: dict[str, object] = {}
        exec("\n".join(lines[:-1]), names)
        assert eval(lines[-1], names) == "cat"


@pytest.mark.slow
def test_problems_of_a_lesson_and_its_failure_are_told(tmp_path: Path, backbone: Path) -> None:
    seen: list[str] = []
    with run_server(tmp_path / "pets", backbone=str(backbone)) as server, server.client() as client:
        images = {"red": [*pngs("red", 3), b"junk"], "green": pngs("green", 3)}
        result = client.teach("pets", images, hold_out=0, on_progress=lambda job: seen.append(job["state"]))
        assert result["held_out"] is None
        assert [each["file"] for each in result["problems"]] == ["image-3"]
        assert seen[-1] == "done"
        with pytest.raises(ServerError, match="needs an upload"):
            client.start("pets", "learn")


def test_bad_addresses_are_refused() -> None:
    for url in ("localhost:8000", "ftp://x", ""):
        with pytest.raises(ValueError, match="is not the address of a server"):
            Client(url)


def test_a_server_that_cannot_be_reached_is_an_os_error() -> None:
    with Client("http://127.0.0.1:9", timeout=2) as client, pytest.raises(OSError):
        client.health()
