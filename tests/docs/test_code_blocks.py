"""Every code block of the documentation is run, parsed, or marked with the reason why not."""

from __future__ import annotations

import json
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, square, write_images, write_squares
from PIL import Image

from caprompt import ContinualClassifier
from caprompt.cli.app import app
from caprompt.experiments.config import RunConfig
from caprompt.methods import list_methods
from caprompt.methods.templates import DirectMethod
from caprompt.utils.files import tomllib

sys.path.insert(0, str(ROOT / "tools"))
from code_blocks import Block, find_blocks, list_commands

GENERATED = {"reference", "notebooks"}  # folders of pages that are written from docstrings and notebooks
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.parent.name not in GENERATED and "reference" not in path.parts
}
BLOCKS = [(page, block) for page, text in PAGES.items() for block in find_blocks(text)]

COMMANDS, PYTHON, PARSED, TEXT = {"", "console", "sh"}, {"python", "py"}, {"toml", "json"}, {"text"}
#: Tests that run all Python of a page.
OWN_TESTS = {
    "README.md": "tests/test_readme.py",
    "docs/data.md": "tests/test_data_page.py",
    "docs/extending.md": "tests/test_extending_page.py",
    "docs/tutorials/method.md": "tests/docs/test_tutorials.py",
    "docs/tutorials/photos.md": "tests/docs/test_tutorials.py",
}
#: Everything that is marked as not run.
NOT_RUN = {
    ("docs/cluster.md", "needs a Ray cluster; tests/distributed/test_ray_grid.py starts one"),
    ("docs/export.md", "needs ONNX Runtime Web; tests/export/test_browser.py runs it where it is installed"),
    ("docs/how-to/serve.md", "needs a server; tests/test_client.py starts one"),
    ("docs/hub.md", "needs the hub; tests/export/test_hub.py starts one"),
    ("docs/serve.md", "needs a server; tests/test_client.py starts one"),
    ("docs/tutorials/method.md", "it is the same again, three times as long"),
    ("docs/tutorials/photos.md", "the tests run in an environment that is installed already"),
}
#: Programs that pages call besides caprompt, Python and pip; none of them is run.
PROGRAMS = {"cp", "curl", "hf", "make", "npm", "pre-commit", "pytest", "sha256sum", "source", "ssh-keygen", "tar"}
PROGRAMS |= {f".venv/bin/{name}" for name in ("jupyter", "lint-imports", "pytest")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def name_block(value: object) -> str:
    return f"line {value.line + 1}" if isinstance(value, Block) else str(value)


def test_every_block_is_of_a_known_kind() -> None:
    unknown = [(page, block.line + 1, block.kind) for page, block in BLOCKS if block.kind not in COMMANDS | PYTHON | PARSED | TEXT]
    assert unknown == []


def test_every_block_that_is_not_run_is_listed_with_an_existing_substitute() -> None:
    assert {(page, block.reason) for page, block in BLOCKS if block.reason} == NOT_RUN
    substitutes = [name for _, reason in NOT_RUN for name in re.findall(r"tests/\S+\.py", reason)]
    assert all((ROOT / name).is_file() for name in substitutes)


def test_pages_with_tests_of_their_own_are_named_there() -> None:
    for page, test in OWN_TESTS.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


# -- commands -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_accepted(page: str) -> None:
    for name, block in BLOCKS:
        if name == page and block.kind in COMMANDS:
            for line in list_commands(block):
                check_line(line, page)


def check_line(line: str, page: str) -> None:
    """Check every command of a line of a shell."""
    words = shlex.split(re.sub(r"(?<=\S);(?=\s)", " ;", line), comments=True)
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in (";", "&&", "|"):
            command.append(word)
        elif command:
            check_command(command, f"{page}: {line}", page)
            command = []


def check_command(words: list[str], where: str, page: str) -> None:
    """Check that a program exists, and that caprompt accepts the arguments."""
    words = words[: words.index(">")] if ">" in words else words
    words = words[next(index for index, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)) :]  # variables
    if words[0] == "torchrun":
        words = words[words.index("caprompt") :]
    if words[0] == "caprompt":
        check_arguments(words[1:], where)
    elif words[0] in ("python", "python3", ".venv/bin/python"):
        name = next(word for word in words[1:] if not word.startswith("-"))
        exists = name == "venv" or (ROOT / "tests" / name).is_dir() if words[1] == "-m" else (ROOT / name).is_file()
        assert exists, where
    elif words[0] == "pip":
        extras = [name for word in words for group in re.findall(r"\[(.+?)\]", word) for name in group.split(",")]
        assert set(extras) <= PROJECT["optional-dependencies"].keys(), where
    else:
        assert words[0] in PROGRAMS, where
        if words[0].endswith("pytest") and page not in OWN_TESTS:
            assert all((ROOT / word).exists() for word in words[1:] if word.startswith("tests")), where


def check_arguments(words: list[str], where: str) -> None:
    """Let the real app parse the arguments of a command, without running it."""
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except Exception as error:
        raise AssertionError(f"{where}\n{error}") from error
    known = {*RunConfig.model_fields, *(name for method in list_methods().values() for name in method.options_class.model_fields)}
    for flag, value in pairwise(words):
        if flag in ("--set", "--search"):
            assert value.partition("=")[0] in known, where


@pytest.mark.parametrize(
    "line",
    [
        "caprompt lern pets photos",
        "caprompt learn pets photos --epochs 3",
        "caprompt run --set epoch=3",
        "caprompt run --seeds three",
        "caprompt info pets && caprompt undo",
        "pip install '.[servers]'",
        "python benchmarks/none.py",
        "OMP_NUM_THREADS=1 python -m none",
        "rm -rf pets",
    ],
)
def test_wrong_commands_are_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        check_line(line, "a page")


# -- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "block"), [each for each in BLOCKS if each[1].kind in PARSED], ids=name_block)
def test_files_can_be_parsed(page: str, block: Block) -> None:
    parsed = tomllib.loads(block.text) if block.kind == "toml" else json.loads(block.text)
    assert parsed


# -- Python -------------------------------------------------------------------------------------------------------------

RUN_HERE = [
    page for page in PAGES if page not in OWN_TESTS and any(b.kind in PYTHON and not b.reason for p, b in BLOCKS if p == page)
]


@pytest.fixture
def folder(tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with what the pages assume: photos, and a model 'pets' of them."""
    names = {"red": "cat", "green": "dog", "blue": "lynx"}
    for part, start in (("week1", 0), ("test", 60)):
        for color, name in names.items():
            write_images(tmp_path / "photos" / part, [square(color, start + number) for number in range(2)], [name] * 2)
    Image.fromarray(square("red", 99)).save(tmp_path / "cat.jpg")
    model = ContinualClassifier("ridge", backbone, projections=100)
    pairs = [(square(color, 100 + number), name) for color, name in names.items() for number in range(20)]  # enough to calibrate
    model.learn(pairs)
    model.save(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE)
def test_python_runs(page: str, folder: Path) -> None:
    """Run the Python of a page from top to bottom, as one program."""
    if page == "docs/processes.md":  # it teaches a new model from a folder of class folders
        (folder / "photos").rename(folder / "old")
        (folder / "pets").rename(folder / "old-pets")
        write_squares(folder / "photos", ["red", "green"], each=2)
    if page == "docs/tuning.md":
        pytest.importorskip("trackio")
    names = {"model": ContinualClassifier.load("old-pets" if page == "docs/processes.md" else "pets"), "np": np}
    names |= {"nn": torch.nn, "DirectMethod": DirectMethod}
    for name, block in BLOCKS:
        if name == page and block.kind in PYTHON and not block.reason:
            exec(compile(block.text, f"{page}, line {block.line + 1}", "exec"), names)


def test_py_block_of_extending_is_python() -> None:
    (block,) = [block for page, block in BLOCKS if page == "docs/extending.md" and block.kind == "py"]
    compile(block.text, "docs/extending.md", "exec")
