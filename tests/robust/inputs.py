"""Odd paths, names and files for every command: FIFOs, devices, loops of links, escapes of terminals, damaged lists of images.

A command must end with its result or with one sentence, print no control character, and change nothing when it refuses.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import torch
from helpers import squares

from caprompt import ContinualClassifier
from caprompt.cli.app import main
from caprompt.errors import CapromptError
from caprompt.utils.spreadsheets import escape_formula
from robust.attack import Attack, InvalidError, LostError, RefusedError
from robust.damage import mutate_bytes
from robust.material import make_model, read_plan, write_plan

CONTROL = frozenset(map(chr, (*range(9), *range(11, 32), 127, *range(0x80, 0xA0))))
NAMES = (
    "x.png",
    "-x.png",
    "--help.png",
    "=cmd().png",
    "@x.png",
    "a,b.png",
    'q".png',
    "two\nlines.png",
    "\x1b[31mred.png",
    "caf\udce9.png",
    "\u202egnp.png",
    "$^{~}.png",
    "x" * 240 + ".png",
)
CLASSES = (
    "=cmd()",
    "@x",
    "{\\LaTeX}$^~",
    "\x1b]0;x\x07",
    "two\nlines",
    "..",
    "con",
    " ",
    "a" * 250,
    "caf\udce9",
    "\u202ex",
    "-x",
    "0",
    "red",
)
COMMANDS = (
    "learn",
    "predict",
    "evaluate",
    "explain",
    "info",
    "classes",
    "undo",
    "rename",
    "report",
    "forget",
    "predict-csv",
    "api",
    "save",
)


def prepare(folder: Path) -> Path:
    """Make a model and images."""
    make_model(folder, {"week1": ["red", "green"], "week2": ["blue"]}, each=4)
    return folder


def damage(base: Path, folder: Path, rng: Random, number: int) -> str:
    """Make a folder of images with something odd in it, and choose a command for it."""
    source = folder / "photos"
    shutil.copytree(base / "week2", source)
    command = COMMANDS[number % len(COMMANDS)]
    if command in ("evaluate", "report"):  # needs images of a class that the model knows
        shutil.copytree(base / "week1" / "red", source / "red")
    way = rng.choice(sorted(ODD))
    note = ODD[way](source, base, rng)
    where = rng.choice((source, source, source / "blue", *sorted(source.rglob("*"))))
    plan = {
        "command": command,
        "place": os.fsencode(where.relative_to(folder)).decode("latin1"),
        "word": rng.choice(("~nosuchuser/x", "", "\0", "/dev/null", "hf:a", "a" * 5000, "\x1b[31m", "red", "x\ny", "nan", "-1")),
        "odd_word": rng.random() < 0.3,
        "skip": rng.random() < 0.5,
        "value": rng.randrange(len(VALUES)),
    }
    write_plan(folder, plan)
    return f"{way} {note}: {command}, {plan['word'][:20] if plan['odd_word'] else plan['place']!r}"


def _make_fifo(source: Path, _: Path, rng: Random) -> str:
    os.mkfifo(source / "blue" / "x.png")
    return ""


def _link_device(source: Path, _: Path, rng: Random) -> str:
    target = rng.choice(("/dev/zero", "/dev/random", "/dev/null", "/dev/tty", "/proc/self/mem", "/proc/kmsg"))
    (source / "blue" / "x.png").symlink_to(target)
    return target


def _link_in_circles(source: Path, _: Path, rng: Random) -> str:
    (source / "blue" / "x.png").symlink_to("x.png")
    (source / "circle").symlink_to(source.parent)
    (source / "blue" / "up").symlink_to("..")
    return ""


def _name_oddly(source: Path, _: Path, rng: Random) -> str:
    name = rng.choice(NAMES)
    image = next(iter(sorted((source / "blue").iterdir())))
    content, _note = mutate_bytes(image.read_bytes(), b"", rng, 64)
    try:
        (source / "blue" / name).write_bytes(content if rng.random() < 0.5 else image.read_bytes())
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    return repr(name[:30])


def _name_class_oddly(source: Path, base: Path, rng: Random) -> str:
    name = rng.choice(CLASSES)
    if name not in ("..",):
        shutil.copytree(base / "week1" / "red", source / name, dirs_exist_ok=True)
    return repr(name[:30])


def _make_folder(source: Path, _: Path, rng: Random) -> str:
    (source / "blue" / "x.png").mkdir()
    (source / "empty").mkdir()
    (source / "blue" / "nothing.jpg").touch()
    return ""


def _write_table(source: Path, base: Path, rng: Random) -> str:
    """A CSV file or an export of an annotation tool, damaged."""
    images = sorted((base / "week2" / "blue").iterdir())
    rows = "".join(f"{path},{rng.choice(CLASSES)}\n" for path in images)
    other = {"samples": [{"filepath": str(path), "ground_truth": {"label": "blue"}} for path in images]}
    content = ("path,label\n" + rows if rng.random() < 0.6 else json.dumps(other)).encode(errors="surrogateescape")
    if rng.random() < 0.6:
        content, _note = mutate_bytes(content, b"", rng, 40)
    shutil.rmtree(source)
    source.mkdir()
    (source / rng.choice(("list.csv", "list.json"))).write_bytes(content)
    return ""


def _change_nothing(source: Path, _: Path, rng: Random) -> str:
    return ""


ODD: dict[str, Callable[[Path, Path, Random], str]] = {
    "FIFO": _make_fifo,
    "device": _link_device,
    "circle": _link_in_circles,
    "name": _name_oddly,
    "class": _name_class_oddly,
    "folder": _make_folder,
    "table": _write_table,
    "nothing": _change_nothing,
}
VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: [None],
    list,
    lambda: 7,
    lambda: [7],
    lambda: b"",
    lambda: [b"GIF89a"],
    lambda: io.BytesIO(b"x"),
    lambda: [io.StringIO("x")],
    lambda: {"path": None},
    lambda: [{}],
    lambda: [[]],
    lambda: "~nosuchuser/x.png",
    lambda: torch.zeros(0),
    lambda: torch.zeros(5, 5, 5, 5, 5),
    lambda: [torch.full((3, 8, 8), float("nan"))],
    lambda: [torch.zeros(3, 0, 8)],
    lambda: squares(["red"], each=1)[0][0].astype("complex64"),
    lambda: [squares(["red"], each=1)[0][0].astype("object")],
    lambda: (squares(["red"], each=2)[0], ["red"]),
    lambda: (squares(["red"], each=2)[0], ["a/b", "c"]),
    lambda: (squares(["red"], each=2)[0], [1.5, float("nan")]),
    lambda: (squares(["red"], each=2)[0], [True, None]),
    lambda: (None, None),
    lambda: object(),
    lambda: iter([None]),
    lambda: (image for image in squares(["red"], each=1)[0]),
)


def use(base: Path, folder: Path) -> None:
    """Run the command, or call the library with a value that is no image."""
    plan = read_plan(folder)
    model = folder / "pets"
    shutil.copytree(base / "pets", model)
    if plan["command"] in ("api", "save"):
        _call_library(model, folder, plan)
        return
    place = plan["word"] if plan["odd_word"] else os.fsdecode(os.fsencode(folder) + b"/" + plan["place"].encode("latin1"))
    before = _list_tree(folder)
    status, stdout, stderr = _run(_list_words(plan, str(model), place, folder), folder)
    if CONTROL & set(stdout + stderr):
        raise InvalidError(f"control characters: {(stdout + stderr)!r}")
    lines = [line for line in stderr.strip().splitlines() if not line.startswith(("warning: ", "skipped: ", "ignored "))]
    if status == 0:
        written = folder / "wrong.csv"
        _check_cells(written.read_bytes().decode(errors="surrogateescape") if written.exists() else "")
        _check_cells(stdout if plan["command"] == "predict-csv" else "")
        if plan["command"] != "undo":  # after which there may be no model
            ContinualClassifier.load(model, device="cpu")
        return
    if status in (1, 2) and len(lines) == 1 and lines[0].startswith("caprompt: ") and len(lines[0]) < 6500:
        if _list_tree(folder) != before:
            raise LostError(f"refused, but files have changed: {lines[0]}")
        raise RefusedError(lines[0])
    raise AssertionError(f"exit status {status}: {stderr}")


def _check_cells(text: str) -> None:
    """Raise `InvalidError` for a CSV file with a cell that a spreadsheet program would run."""
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            if escape_formula(cell) != cell:
                raise InvalidError(f"a cell of the CSV file is {cell!r}")


def _list_words(plan: dict[str, Any], model: str, place: str, folder: Path) -> list[str]:
    skip = ["--skip-bad"] if plan["skip"] else []
    return {
        "learn": ["learn", model, place, *skip],
        "predict": ["predict", model, place],
        "predict-csv": ["predict", model, place, "--csv"],
        "evaluate": ["evaluate", model, place, "--wrong", str(folder / "wrong.csv"), *skip],
        "explain": ["explain", model, place, "--out", str(folder / "why.png")],
        "info": ["info", model if plan["skip"] else place],
        "classes": ["classes", model if plan["skip"] else place],
        "undo": ["undo", model if plan["skip"] else place],
        "rename": ["rename", model, "red", plan["word"]],
        "forget": ["forget", model, plan["word"]],
        "report": ["report", model, place, "--out", str(folder / "report.html"), *skip],
    }[plan["command"]]


def _run(words: list[str], folder: Path) -> tuple[object, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            main(words)
    except SystemExit as error:
        return error.code, stdout.getvalue(), stderr.getvalue()
    finally:
        os.chdir(before)
    return 0, stdout.getvalue(), stderr.getvalue()


def _call_library(model: Path, folder: Path, plan: dict[str, Any]) -> None:
    loaded = ContinualClassifier.load(model, device="cpu")
    if plan["command"] == "save":  # among files of others
        target = folder / "photos"
        (target / "config.json").write_text("{}")
        before = _list_tree(target)
        try:
            loaded.save(target)
        except CapromptError:
            if _list_tree(target) != before:
                raise LostError("files of others were changed") from None
            raise
        raise LostError("a model was saved among files of others")
    value = VALUES[plan["value"]]
    calls: list[Callable[[], Any]] = [
        lambda: loaded.predict(value()),
        lambda: loaded.learn(value()),
        lambda: loaded.evaluate(value()),
        lambda: loaded.evaluate(squares(["red"], each=1), tasks=[["red"]]),
        lambda: loaded.predict_one(value()),
    ]
    refused = None
    for call in calls:
        try:
            call()
        except CapromptError as error:
            refused = error
    if refused is not None:
        raise refused


def _list_tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change of every file."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*") if not path.is_dir()}


ATTACK = Attack("inputs", "odd paths, names, files and values for every command", 600, 60, prepare, damage, use)
