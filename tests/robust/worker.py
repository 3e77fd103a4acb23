"""The process in which the tries of one attack run: it says when a try begins and how it ended, a line of JSON each.

python -m robust.worker NAME SEED FIRST COUNT FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from robust.attack import GOOD, Attack, judge, make_random
from robust.registry import get_attack

DEFECTIVE = 77  # exit status for an attack that cannot make its material, which says nothing about the package


def main(arguments: list[str]) -> None:
    """Run tries and report each."""
    name, seed, first, count, folder = arguments[0], *map(int, arguments[1:4]), Path(arguments[4])
    attack = get_attack(name)
    messages = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no message
    context = attack.prepare(make_folder(folder / "prepared"))
    _send(messages, {"ready": True})
    for number in range(first, first + count):
        _send(messages, {"begin": number})
        _send(messages, {"number": number, **run_try(attack, context, seed, number, folder)})


def run_try(attack: Attack, context: Any, seed: int, number: int, root: Path) -> dict[str, Any]:
    """Run one try in a folder of its own; return its outcome, and where the material of a failure is."""
    material, working = make_folder(root / "material"), make_folder(root / "working")
    try:
        description = attack.damage(context, material, make_random(seed, number), number)
    except Exception:
        traceback.print_exc()
        sys.exit(DEFECTIVE)
    (root / "description").write_text(description, encoding="utf-8", errors="backslashreplace")
    shutil.rmtree(working)
    copy_material(material, working)
    _reset_peak()
    start_time = time.monotonic()
    outcome, message = judge(lambda: attack.use(context, working))
    seconds = time.monotonic() - start_time
    peak = _read_peak()
    _make_removable(working)
    is_good = outcome in GOOD and seconds <= attack.limit
    if not is_good:  # the next try makes its material in the same place
        material = material.rename(root / f"failed-{number}")
    return {
        "outcome": outcome if seconds <= attack.limit else "hung",
        "message": message if not is_good else message[:200],
        "description": description,
        "seconds": round(seconds, 3),
        "bytes": peak,
        "material": "" if is_good else str(material),
    }


def copy_material(material: Path, working: Path) -> None:
    """Copy the material of a try, so that it is still there if the try changes it; a FIFO is made anew."""
    shutil.copytree(material, working, symlinks=True, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    if stat.S_ISFIFO(os.lstat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def make_folder(folder: Path) -> Path:
    """Make an empty folder."""
    if folder.exists():
        _make_removable(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def run_once(attack: Attack, seed: int, number: int) -> dict[str, Any]:
    """Run one try in this process, without a watch."""
    with tempfile.TemporaryDirectory(prefix="robust-") as root:
        context = attack.prepare(make_folder(Path(root) / "prepared"))
        return run_try(attack, context, seed, number, Path(root))


def _make_removable(folder: Path) -> None:
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())):
        path.chmod(0o755)


def _send(messages: Any, message: dict[str, Any]) -> None:
    messages.write(json.dumps(message) + "\n")
    messages.flush()


def _reset_peak() -> None:
    """Measure the peak of this process's memory from here on, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _read_peak() -> int:
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
