"""The smoke suite: the installed `caprompt` learns, predicts, is tested and undone by its command line, as a person types it.

    python tools/smoke.py                 # with the Python of the environment that caprompt is installed in

Nothing of the source tree is used. The images are drawn here; the backbone is the one in the package. It takes about a minute.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 60, 220), "yellow": (230, 220, 40)}
OPTIONS = "--offline --set epochs=2 --set projections=200 --set length=4"


def draw(folder: Path, names: list[str], count: int, seed: int) -> None:
    """Write images of colored squares on noise, a sub-folder per class."""
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = rng.integers(90, 160, (64, 64, 3)).astype(np.uint8)
            top, left = rng.integers(0, 24, 2)
            image[top : top + 36, left : left + 36] = COLORS[name]
            Image.fromarray(image).save(folder / name / f"{number}.jpg")


def type_command(line: str, folder: Path) -> str:
    """Run a command line and return what it prints; exit with its messages if it fails."""
    print(f"$ {line}", flush=True)
    program, *words = shlex.split(line)
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"it ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check(is_right: bool, what: str) -> None:
    """Exit with a sentence unless something is right."""
    if not is_right:
        sys.exit(f"the smoke suite failed: {what}")


def check_package(folder: Path) -> None:
    """Check that the package is the installed one."""
    script = "import caprompt; print(caprompt.__file__); from caprompt import ContinualClassifier"
    found = type_command(f"python -c {shlex.quote(script)}", folder).strip()
    check("site-packages" in found, f"caprompt was imported from '{found}', not from an installed wheel")


def check_model(folder: Path) -> None:
    """Teach a model in two lessons, use it, and undo the second."""
    type_command(f"caprompt learn model first {OPTIONS}", folder)
    type_command("caprompt learn model second", folder)
    predictions = json.loads(type_command("caprompt predict model test --json", folder))
    check(len(predictions) == 12, f"{len(predictions)} predictions for 12 images")
    evaluation = json.loads(type_command("caprompt evaluate model test --json", folder))
    check(evaluation["accuracy"] >= 75, f"an accuracy of {evaluation['accuracy']} % on colored squares")
    info = json.loads(type_command("caprompt info model --json", folder))
    check({each["name"] for each in info["classes"]} == set(COLORS), "other classes than were taught")
    type_command("caprompt report model test --out report.html", folder)
    check("<html" in (folder / "report.html").read_text(encoding="utf-8"), "the report is not a page")
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")):
        type_command("caprompt export model --to onnx --out model.onnx --verify test", folder)
        check((folder / "model.onnx").stat().st_size > 0, "the exported model is empty")
    else:
        print("(no export: the extra caprompt[export] is not installed)")
    type_command("caprompt undo model", folder)
    info = json.loads(type_command("caprompt info model --json", folder))
    check(len(info["classes"]) == 2, "undo did not bring back the two classes of the first lesson")


def main() -> None:
    """Run everything in a temporary folder."""
    names = list(COLORS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw(folder / "first", names[:2], 6, seed=0)
        draw(folder / "second", names[2:], 6, seed=1)
        draw(folder / "test", names, 3, seed=2)
        type_command("caprompt --version", folder)
        type_command("caprompt --help", folder)
        check_package(folder)
        check_model(folder)
    print("the smoke suite passed")


if __name__ == "__main__":
    main()
