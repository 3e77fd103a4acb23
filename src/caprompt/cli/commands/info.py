"""The commands `info` and `classes`: what a model holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caprompt.cli.arguments import AsJson
from caprompt.cli.console import format_json, out, print_table

if TYPE_CHECKING:
    from caprompt.classifier.info import ModelInfo

__all__ = ["classes", "info"]

MAX_LESSONS = 20  # printed, the newest


def info(model: Path, *, as_json: AsJson = False) -> None:
    """Show what a model holds: classes, lessons, backbone, size on disk, and what is kept of images.

    Parameters
    ----------
    model
        Folder of the model.
    """
    from caprompt.classifier.info import read_info

    details = read_info(model)
    if as_json:
        print(format_json(details.as_dict()))
        return
    print_summary(details)
    print_lessons(details)
    print_sizes(details)
    out.print("kept of images:", style="bold")
    for sentence in details.kept or ("nothing but what was trained on them",):
        out.print(f"  {sentence}", soft_wrap=True)


def classes(model: Path, *, as_json: AsJson = False) -> None:
    """List the classes of a model, with image counts and dates.

    Parameters
    ----------
    model
        Folder of the model.
    """
    from caprompt.classifier.info import read_info
    from caprompt.cli.tables import make_table

    details = read_info(model).classes
    if as_json:
        print(format_json([{"name": each.name, "images": each.images, "tasks": each.tasks} for each in details]))
        return
    rows = [
        [
            each.name,
            str(each.images),
            ", ".join(map(str, each.tasks)),
            each.first[:10],
            each.last[:10] if each.last != each.first else "",
        ]
        for each in details
    ]
    print_table(make_table(f"{len(rows)} classes", ["class", "images", "task", "learned", "last images"], rows))


def print_summary(details: ModelInfo) -> None:
    """Print what the model is."""
    backbone = details.backbone
    out.print(f"'{details.folder}': {len(details.classes)} classes from {details.images} images", soft_wrap=True)
    out.print(f"method {details.method}, seed {details.seed}, written by caprompt {details.version}", soft_wrap=True)
    if details.options:
        out.print("options: " + ", ".join(f"{name}={value}" for name, value in details.options.items()), soft_wrap=True)
    out.print(f"backbone {backbone['name']}, SHA-256 {backbone['sha256'][:16]}...", soft_wrap=True)
    if details.evaluation:
        evaluation = details.evaluation
        out.print(
            f"last evaluation: {evaluation['accuracy']:.1f} % of {evaluation['images']} images, on {evaluation['date'][:10]}",
            soft_wrap=True,
        )
    if details.stopped:
        out.print("a call of learn was stopped; resume it, or discard it with undo", soft_wrap=True)


def print_lessons(details: ModelInfo) -> None:
    """Print the newest lessons and edits."""
    from caprompt.cli.tables import make_table

    rows = [
        [str(number), lesson["date"][:16].replace("T", " "), describe(lesson)] for number, lesson in enumerate(details.lessons, 1)
    ]
    if rows:
        hidden = len(rows) - MAX_LESSONS
        title = f"lessons and edits ({hidden} earlier ones: --json)" if hidden > 0 else "lessons and edits"
        print_table(make_table(title, ["", "date", "what"], rows[-MAX_LESSONS:]))


def describe(lesson: Mapping[str, Any]) -> str:
    """Return a line on a lesson or an edit.

    >>> describe({"kind": "rename", "from": "kitty", "to": "cat"})
    "renamed 'kitty' to 'cat'"
    """
    kind = lesson["kind"]
    if kind == "rename":
        return f"renamed '{lesson['from']}' to '{lesson['to']}'"
    if kind == "join":
        names = ", ".join(f"'{name}'" for name in lesson["from"])
        return f"joined {names} as '{lesson['to']}'"
    if kind == "forget":
        return "forgot a class"
    if kind == "merge":
        return f"merged {', '.join(repr(name) for name in lesson['from'])}"
    if kind == "calibrate":
        return f"calibrated on {lesson['images']} images"
    counts = lesson.get("classes", {})
    images = sum(entry["images"] for entry in counts.values())
    new = sum(entry["new"] for entry in counts.values())
    parts = [f"{new} new"] * bool(new) + [f"{len(counts) - new} known"] * (len(counts) > new)
    return f"learned {images} images of {' and '.join(parts) or 'forgotten'} classes in {lesson.get('seconds', 0):.0f} s"


def print_sizes(details: ModelInfo) -> None:
    """Print the size of each part of the model folder."""
    from caprompt.cli.tables import make_table

    rows = [[name, f"{size / 1e6:.1f} MB"] for name, size in details.files.items()]
    print_table(make_table(f"on disk, {details.bytes / 1e6:.1f} MB", ["part", "size"], rows))
